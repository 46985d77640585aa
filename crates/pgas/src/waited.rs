//! How long something takes that is not one wait of the fabric.

use std::time::{Duration, Instant};

/// A look at the clock that comes so much later is that of a process which was stopped, as in the waits of the fabric.
const GAP: Duration = Duration::from_secs(2);

/// The time from the first look on, as far as the process ran.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    last: Option<Instant>,
    waited: Duration,
}

impl Waited {
    /// Looks at the clock; whether it was as long as that.
    #[cold]
    pub(crate) fn is_over(&mut self, deadline: Duration) -> bool {
        self.until(Instant::now()) >= deadline
    }

    fn until(&mut self, now: Instant) -> Duration {
        let since = self.last.replace(now).unwrap_or(now);
        self.waited += now.saturating_duration_since(since).min(GAP);
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn being_stopped_is_no_waiting() {
        let (first, second) = (Instant::now(), Duration::from_secs(1));
        let mut waited = Waited::default();
        let mut until = |seconds: u32| waited.until(first + seconds * second);
        assert_eq!(until(0), Duration::ZERO);
        assert_eq!(until(1), second);
        assert_eq!(until(60), second + GAP);
        assert_eq!(until(61), 2 * second + GAP);
        assert!(!Waited::default().is_over(second));
        assert!(Waited::default().is_over(Duration::ZERO));
    }
}
