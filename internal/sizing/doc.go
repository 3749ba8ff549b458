// Package sizing turns a description of work into what it needs: the memory of a
// model by method and precision, the streams that a GPU encodes, the seats that
// it carries.
//
// Everything here is modelled, never measured, and says so: formulas and tables
// cite their source, and what they do not know is unknown. Sizes are bytes,
// "GB" is 10⁹ bytes as in the published tables.
package sizing

// gb is the unit of the published tables.
const gb = 1e9
