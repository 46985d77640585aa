//! Progress, as `samite run` understands it.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Error;

/// Between two reports: faster than an eye follows is of no use.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes a report now and then.
pub(crate) struct Reporter<'a> {
    out: &'a mut dyn Write,
    of: u64,
    last: Option<Instant>,
}

/// One line for the launcher.
#[derive(Serialize)]
struct Line {
    step: u64,
    of: u64,
    note: String,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, of: u64) -> Self {
        Self {
            out,
            of,
            last: None,
        }
    }

    /// Reports a step if the last report is long enough ago, or if it is the last step.
    pub(crate) fn report(&mut self, step: u64, note: impl FnOnce() -> String) -> Result<(), Error> {
        let due = self.last.is_none_or(|last| last.elapsed() >= PAUSE);
        if !due && step < self.of {
            return Ok(());
        }
        self.last = Some(Instant::now());
        let line = Line {
            step,
            of: self.of,
            note: note(),
        };
        let json = serde_json::to_string(&line).map_err(std::io::Error::from)?;
        writeln!(self.out, "\u{1e}progress {json}")?;
        Ok(self.out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_step_are_reported() {
        let mut out = Vec::new();
        let mut reporter = Reporter::new(&mut out, 1000);
        for step in 1..=1000 {
            reporter.report(step, || "fine".into()).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("\u{1e}progress {\"step\":1,\"of\":1000,\"note\":\"fine\"}\n"));
        assert!(text.ends_with("\"step\":1000,\"of\":1000,\"note\":\"fine\"}\n"));
        assert!(text.lines().count() < 1000);
    }
}
