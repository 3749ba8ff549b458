// Package aws is the adapter for Amazon EC2.
package aws
