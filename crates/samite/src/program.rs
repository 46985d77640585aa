//! What a program of a job reports while it runs and when it is done.
//!
//! * [`Reporter`]: its progress, in the form that `samite run` shows as a progress bar.
//! * [`Summary`]: the result, for people: names and values in two columns.
//! * [`Units`]: the exchange of data between the units of one program, such as their parts of a
//!   result.

use std::fmt::{Display, Formatter};
use std::io::{Result, Write};
use std::time::{Duration, Instant};

use samite_fabric::{Fabric, Match, PeerId};
use serde::Serialize;

/// The tag of the messages of [`Units::share`]: "share", so that programs do not use it by chance.
const SHARE: u64 = u64::from_be_bytes(*b"\0\0\0share");

/// The time between two reports. More frequent ones would be too fast to see.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes progress reports at intervals.
///
/// ```
/// use samite::program::Reporter;
///
/// let mut out = std::io::stdout();
/// let mut progress = Reporter::new(&mut out, 100); // of 100 steps
/// for step in 1..=100 {
///     // ... compute
///     progress.report(step, || format!("residual {:.0e}", 1.0 / step as f64))?;
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Reporter<'a> {
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
    /// Creates a reporter for a run of `of` steps.
    pub fn new(out: &'a mut dyn Write, of: u64) -> Self {
        Self {
            out,
            of,
            last: None,
        }
    }

    /// Reports a step if enough time has passed since the last report, or if it is the last step.
    /// `note` is shown beside the bar.
    pub fn report(&mut self, step: u64, note: impl FnOnce() -> String) -> Result<()> {
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
        let json = serde_json::to_string(&line)?;
        writeln!(self.out, "\u{1e}progress {json}")?;
        self.out.flush()
    }
}

impl std::fmt::Debug for Reporter<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reporter(of {})", self.of)
    }
}

/// Names and values, one pair per line, under a title.
///
/// ```
/// use samite::program::Summary;
/// let summary = Summary::new("a run").row("units", 2).verification(true, "all cells are equal");
/// print!("{summary}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    title: String,
    rows: Vec<(String, String)>,
}

impl Summary {
    /// Creates a summary with only a title.
    pub fn new(title: impl Display) -> Summary {
        Summary {
            title: title.to_string(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    #[must_use]
    pub fn row(mut self, name: impl Display, value: impl Display) -> Summary {
        self.rows.push((name.to_string(), value.to_string()));
        self
    }

    /// Adds the row that says whether the result is correct, in the wording of the NAS benchmarks.
    #[must_use]
    pub fn verification(self, right: bool, detail: impl Display) -> Summary {
        let word = if right { "SUCCESSFUL" } else { "FAILED" };
        self.row("verification", format_args!("{word}: {detail}"))
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.title)?;
        let names = self.rows.iter().map(|(name, _)| name.chars().count());
        let width = names.max().unwrap_or(0);
        for (name, value) in &self.rows {
            writeln!(f, "  {name:width$}  {value}")?;
        }
        Ok(())
    }
}

/// The units of this process's program.
///
/// ```
/// let fabric = samite::init()?;
/// let units = samite::program::Units::wait_for_all(&fabric)?;
/// let all = units.share(b"what this unit found")?; // of all units, by rank
/// assert_eq!(all.len(), fabric.identity().size as usize);
/// # Ok::<(), samite::Error>(())
/// ```
#[derive(Debug)]
pub struct Units {
    fabric: Fabric,
    units: Vec<PeerId>,
}

impl Units {
    /// Waits until all of them have joined.
    ///
    /// # Errors
    /// They do not join within the fabric's deadline.
    pub fn wait_for_all(fabric: &Fabric) -> samite_fabric::Result<Units> {
        let units = fabric.program(&fabric.identity().program)?;
        let fabric = fabric.clone();
        Ok(Units { fabric, units })
    }

    /// Sends `bytes` to every unit and returns the bytes of all units, by rank. Collective over the
    /// program. When it returns, the bytes of this unit have reached all others or are in flight.
    ///
    /// # Errors
    /// A unit is lost, or does not call this within the fabric's deadline.
    pub fn share(&self, bytes: &[u8]) -> samite_fabric::Result<Vec<Vec<u8>>> {
        let me = self.fabric.me();
        let others = self.units.iter().filter(|unit| **unit != me);
        let sends = others.map(|&unit| self.fabric.isend(unit, SHARE, bytes.to_vec()));
        let sends: Vec<_> = sends.collect::<samite_fabric::Result<_>>()?;
        let said = |&unit: &PeerId| match unit == me {
            true => Ok(bytes.to_vec()),
            false => {
                let (_, said) = self.fabric.recv_vec(Match::from(unit, SHARE))?;
                Ok(said)
            }
        };
        let all = self.units.iter().map(said).collect();
        for send in sends {
            send.wait()?;
        }
        all
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

    #[test]
    fn values_stand_in_one_column() {
        let summary = Summary::new("a run")
            .row("units", 2)
            .verification(true, "all");
        let text = "a run\n  units         2\n  verification  SUCCESSFUL: all\n";
        assert_eq!(summary.to_string(), text);
        assert!(
            Summary::new("")
                .verification(false, 1)
                .to_string()
                .contains("FAILED: 1")
        );
    }
}
