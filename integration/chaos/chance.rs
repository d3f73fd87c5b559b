//! Choices that a seed repeats.

/// SplitMix64: every seed is a good one.
#[derive(Clone)]
pub struct Chance(u64);

// === impl Chance ===

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Of another one for each number: what one pod chooses does not change what the next one does.
    pub fn split(&self, number: u64) -> Self {
        let mut chance = Self(self.0 ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        chance.next();
        chance
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

    /// True so many times of a hundred.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }

    /// From 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1 << 20) as f64
    }

    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// One of several, each as often as its weight says.
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
