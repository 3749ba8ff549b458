// Package docstest keeps what the documents say true where a test can tell: that
// specs and configurations in them are valid, that commands and flags exist, and
// that links lead somewhere. It has no code of its own; the program termsvg below
// it draws the picture in the README.
package docstest
