// Package archtest holds the rules of who may import whom, and of what the
// scheduler and the programs may contain, as tests.
//
// The rules are a table ([rules] in rules_test.go), each with its reason, over
// one listing of the module's packages. A rule that names a package which is no
// longer there fails too: a rule about nothing would pass for ever. What is
// checked holds for Linux, where the tests run.
package archtest
