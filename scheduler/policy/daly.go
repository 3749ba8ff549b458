package policy

import (
	"math"
	"time"
)

// CheckpointInterval returns how long to work between two saves, when a save
// takes save and preemptions come every life on average (the mean residual
// life at the machine's age, for lives are heavy-tailed). It is the higher-order
// estimate of J. Daly (Future Generation Computer Systems 22, 2006, eq. 37):
// for q = save, M = life, q < 2M
//
//	W = sqrt(2qM) · (1 + sqrt(q/2M)/3 + (q/2M)/9) − q
//
// and W = M otherwise. It is 0 if save or life is not positive: save when you like.
func CheckpointInterval(save, life time.Duration) time.Duration {
	if save <= 0 || life <= 0 {
		return 0
	}
	q, m := save.Seconds(), life.Seconds()
	if q >= 2*m {
		return life
	}
	x := q / (2 * m)
	w := math.Sqrt(2*q*m)*(1+math.Sqrt(x)/3+x/9) - q
	return time.Duration(math.Round(w)) * time.Second
}
