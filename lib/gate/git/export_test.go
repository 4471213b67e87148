package git

// Parse is for the fuzz test.
func Parse(data []byte) ([]Entry, error) { return parse(data, 20) }
