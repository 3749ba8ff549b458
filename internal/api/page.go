package api

// defaultLimit is how many rows a page has when nobody says.
const defaultLimit = 100

// scan bounds how many pages of rows that the caller may not see are read for
// one call.
const scan = 20

// page reads a list until limit rows that the caller may see are found. next is
// the cursor of the following page, zero at the end of the list.
func page[T any, K comparable](after K, limit int, read func(after K, limit int) ([]T, error), key func(T) K, may func(T) bool) (out []T, next K, err error) {
	if limit <= 0 {
		limit = defaultLimit
	}
	out = []T{}
	for range scan {
		rows, err := read(after, limit)
		if err != nil {
			return nil, next, err
		}
		for i, row := range rows {
			after = key(row)
			if !may(row) {
				continue
			}
			out = append(out, row)
			if len(out) == limit {
				if i == len(rows)-1 && len(rows) < limit {
					return out, next, nil
				}
				return out, after, nil
			}
		}
		if len(rows) < limit {
			return out, next, nil
		}
	}
	return out, after, nil
}
