//! Medians and percentiles.

/// A function that returns one figure of a measurement.
pub type FigureOf<T> = fn(&T) -> f64;

/// Measurements in ascending order.
pub struct Figures(Vec<f64>);

impl FromIterator<f64> for Figures {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "nothing was measured");
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

impl Figures {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The value below which `share` of the measurements lie, interpolated between the two nearest
    /// measurements.
    pub fn quantile(&self, share: f64) -> f64 {
        let at = share * (self.0.len() - 1) as f64;
        let (low, high) = (self.0[at.floor() as usize], self.0[at.ceil() as usize]);
        low + (high - low) * at.fract()
    }

    /// `80.1 ms (77.0 … 88.2)`: median, 10th and 90th percentile.
    pub fn text(&self, unit: &str) -> String {
        let [low, high] = [0.1, 0.9].map(|share| self.quantile(share));
        format!("{:.1} {unit} ({low:.1} … {high:.1})", self.median())
    }
}
