//! Random choices that a seed repeats.

/// SplitMix64, a generator for which every seed is good.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a separate generator for each `number`. If each pod has a generator of its own, the
    /// choices for one pod do not change those for the next.
    pub fn split(&self, number: u64) -> Self {
        let mut random = Self(self.0 ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns true in `times` of 100 calls, on average.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }

    /// A number from 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1 << 20) as f64
    }

    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A random choice among values. The probability of a value is proportional to its weight.
    pub fn weighted<T: Copy>(&mut self, of: &[(T, usize)]) -> T {
        let mut left = self.below(of.iter().map(|(_, weight)| weight).sum());
        for (choice, weight) in of {
            if left < *weight {
                return *choice;
            }
            left -= weight;
        }
        unreachable!("less than the sum of the weights")
    }
}
