//! The consistency checker: whether what the [event logs](crate::log) of a run say is possible if
//! chunks are coherent.
//!
//! Versions are numbered by the home, so it need not search for an order: it compares what each
//! process has seen, and when, with the commits. An operation has taken effect at some moment
//! between its beginning and its end; a commit at the moment of its record `adopt`, before
//! anybody can see the version.
//!
//! # Rules
//! H1 A version is committed once, by one process under one tag, and each follows the one before.
//! H2 A commit that was acknowledged took effect between its beginning and its end.
//! H3 What is read, and what an event tells, was committed before, under that tag.
//! H4 Nothing is read that is older than what was committed, read or told, by anybody, before the
//!    operation began.
//! H5 While a guard is out, nothing is committed but by its own holder; a writer is alone.
//! H6 Events of a subscription come in the order of their versions, each once; unless only the
//!    latest are wanted, none is left out that is not counted as missed.
//! H7 A version is taken by one process.
//!
//! # What it does not see
//! Records that were dropped, or were lost with a process that was killed: what depends on them is
//! not checked, and [`Report::unchecked`] says so. The contents of versions: tests fill them so
//! that a mixed version cannot pass.
//!
//! # Files
//! `collect` (from records to operations on chunks) · `rules`

mod collect;
mod rules;
#[cfg(test)]
mod tests;

use crate::log::Log;
use std::fmt;

/// The most violations that are described.
const MOST: usize = 100;

/// What the checker has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of chunks.
    pub chunks: u64,
    /// The numbers of operations that were checked.
    pub commits: u64,
    /// Guards that were given, snapshots and taken versions.
    pub reads: u64,
    /// Events.
    pub events: u64,
    /// Why not everything could be checked.
    pub unchecked: Vec<String>,
    /// What is impossible: the first of them.
    pub violations: Vec<Violation>,
    /// The number of violations.
    pub count: u64,
}

/// A rule of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// H1.
    Unique,
    /// H2.
    Effect,
    /// H3.
    Committed,
    /// H4.
    Fresh,
    /// H5.
    Exclusive,
    /// H6.
    Ordered,
    /// H7.
    Taken,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "H{}", *self as u8 + 1)
    }
}

/// Something that is impossible if chunks are coherent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

impl Report {
    /// Returns true if nothing is impossible.
    pub fn is_consistent(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, rule: Rule, what: impl FnOnce() -> String) {
        self.count += 1;
        if self.violations.len() < MOST {
            let what = what();
            self.violations.push(Violation { rule, what });
        }
    }
}

/// Checks the logs of a run: those of all processes and servers of a domain.
pub fn check(logs: &[Log]) -> Report {
    let mut report = Report::default();
    let history = collect::History::of(logs, &mut report.unchecked);
    for chunk in history.chunks.values() {
        rules::check(&history, chunk, &mut report);
    }
    report
}
