package policy

import "github.com/grantfirst/grantfirst/lib/demand"

// Doubt makes evidence of what may be another signer: what it grants is unknown because of that, and what it refuses it refuses.
func (e Evidence) Doubt(because string) Evidence {
	replicas := e.Replicas
	e.Replicas = make([]Replica, len(replicas))
	for i, r := range replicas {
		if r.Policy != nil {
			r.Policy = doubted{r.Policy, because}
		}
		e.Replicas[i] = r
	}
	live := e.Live
	e.Live = nil
	for _, o := range live {
		if o.Policy != nil {
			o.Policy = doubted{o.Policy, because}
		}
		e.Live = append(e.Live, o)
	}
	return e
}

type doubted struct {
	Policy
	because string
}

func (p doubted) Decide(d *demand.Demand) Answer {
	a := p.Policy.Decide(d)
	if a.Decision == Granted {
		return unknown("it is granted there, but %s", p.because)
	}
	return a
}
