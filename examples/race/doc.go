// Package race has no code. Its tests show, on a running cluster, the outage that grantfirst is for, and its absence: grant and
// workload applied together (red), the same change through grantfirst (green), and both again and again while signers are restarted,
// replaced and stopped at random moments (the race).
//
// examples/outage/kubernetes starts the cluster. make test-cluster runs a short race, make race one of 200 tries. GRANTFIRST_RACE_TRIES
// is how many, GRANTFIRST_RACE_SEED the seed, which each race prints, and GRANTFIRST_RACE_PARALLEL how many at the same time. A try
// depends on the seed and its number only, as far as the machine is the same.
package race
