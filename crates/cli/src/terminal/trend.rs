//! How a number went over a run of any length, in the same memory: means of as many neighbours as are needed.

/// Means that are kept at most; with more numbers, each is of twice as many.
const MEANS_MAX: usize = 256;

/// The means. Nothing is allocated after the beginning.
#[derive(Clone, Debug)]
pub struct Trend {
    means: Vec<f32>,
    /// Numbers of a mean.
    each: u64,
    /// Of the last one, which is not whole yet.
    sum: f64,
    count: u64,
}

impl Default for Trend {
    fn default() -> Trend {
        Trend { means: Vec::with_capacity(MEANS_MAX), each: 1, sum: 0.0, count: 0 }
    }
}

impl Trend {
    /// Takes note of a number; one that is not finite says nothing of how they went.
    pub fn see(&mut self, number: f32) {
        if !number.is_finite() {
            return;
        }
        self.sum += f64::from(number);
        self.count += 1;
        if self.count == self.each && self.means.len() == MEANS_MAX {
            self.halve();
        }
        if self.count == self.each {
            self.means.push((self.sum / self.count as f64) as f32);
            (self.sum, self.count) = (0.0, 0);
        }
    }

    fn halve(&mut self) {
        for index in 0..MEANS_MAX / 2 {
            self.means[index] = (self.means[2 * index] + self.means[2 * index + 1]) / 2.0;
        }
        self.means.truncate(MEANS_MAX / 2);
        self.each *= 2;
    }

    /// The means of all that were whole, in their order.
    pub fn means(&self) -> &[f32] {
        &self.means
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_are_kept_whole() {
        let mut trend = Trend::default();
        [3.0, f32::NAN, 2.0, f32::INFINITY, 1.0].into_iter().for_each(|number| trend.see(number));
        assert_eq!(trend.means(), [3.0, 2.0, 1.0]);
    }

    #[test]
    fn long_runs_take_the_same_memory_and_keep_their_course() {
        let mut trend = Trend::default();
        let room = trend.means.capacity();
        for number in 0..100_000 {
            trend.see(number as f32);
        }
        assert_eq!(trend.means.capacity(), room);
        assert!((MEANS_MAX / 2..=MEANS_MAX).contains(&trend.means().len()), "{}", trend.means().len());
        // Each is the mean of as many neighbours.
        for (index, mean) in trend.means().iter().enumerate() {
            let middle = (index as f64 + 0.5) * trend.each as f64 - 0.5;
            assert!((f64::from(*mean) - middle).abs() < 0.01 * middle.max(1.0), "{mean} is not {middle}");
        }
    }
}
