package manifest

import (
	"errors"
	"strconv"
	"strings"
)

// ErrEmpty is wrapped by the error of Parse for a stream in which there is no document at all: to Argo CD such output
// means "no manifests", and with prune on it deletes everything an Application has.
var ErrEmpty = errors.New("the manifest stream is empty")

// Error is what is wrong with one document of a stream. Document and Line count from 1; Line is the line of the stream at
// which to look. Object names the object where it is known (apps/Deployment shop/web), for a list with the item's number.
type Error struct {
	Document, Line int
	Object         string
	Err            error
	// Fix says what to do.
	Fix string
}

// Error gives one line: document 3, line 41: what is wrong: what to do.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("document " + strconv.Itoa(e.Document) + ", line " + strconv.Itoa(e.Line) + ": ")
	if e.Object != "" {
		s.WriteString(e.Object + ": ")
	}
	s.WriteString(e.Err.Error())
	if e.Fix != "" {
		s.WriteString(": " + e.Fix)
	}
	return s.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
