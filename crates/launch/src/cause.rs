//! The cause of a failure: which of the units that failed did so by themselves.
//!
//! When a unit fails, those that wait for it soon fail as well, and the kernel does not say who was
//! first. So the launcher compares what they say. An error that says that another unit was lost is
//! a consequence, however early it comes. Units can also fail because what they do does not fit
//! together (an array has two shapes). The error then reaches the unit that came last, which need
//! not be the one that is wrong: the one that most of them name probably is.

use crate::error::{Error, Exit};
use crate::plan::Name;
use crate::words::{LastWords, is_panic};
use rustix::process::Signal;
use std::collections::BTreeMap;

/// What a failure may be. Of all that are seen, the least one is the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// The agent is lost, which all units notice.
    Agent,
    /// A signal killed the unit, which other units notice.
    Signal,
    /// The unit failed by itself.
    Own,
    /// What the unit did does not fit what others did.
    Disagreement,
    /// The unit failed because another one had ended, or did not do its part.
    Consequence,
    /// Somebody asked the job to end.
    Interrupt,
}

impl Claim {
    /// Returns true if no other failure needs to be waited for.
    pub(crate) fn is_certain(self) -> bool {
        !matches!(self, Self::Disagreement | Self::Consequence)
    }
}

/// A failure: what it may be, and the error that reports it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) claim: Claim,
    pub(crate) error: Error,
    /// The other units that the words name, for [`Claim::Consequence`]; those that do not fit
    /// together, for [`Claim::Disagreement`].
    pub(crate) named: Vec<Name>,
    /// Whether the unit cannot have ended so because it was asked to.
    pub(crate) is_unasked: bool,
}

impl Failure {
    /// Classifies the end of a unit. `units`: all units of the job, in order.
    /// `stop`: the signal that asks it to end.
    pub(crate) fn of_unit(
        (unit, stop): (&Name, Signal),
        exit: Exit,
        words: &LastWords,
        units: &[Name],
    ) -> Self {
        let error = words.error();
        let mut named = parties(&error, unit, units);
        let claim = match exit {
            // A program may abort because of an error, which its words state.
            Exit::Signal(signal) if signal != Signal::ABORT.as_raw() => Claim::Signal,
            _ if follows_a_loss(&error) => Claim::Consequence,
            _ if !named.is_empty() => Claim::Disagreement,
            Exit::Signal(_) => Claim::Signal,
            _ => Claim::Own,
        };
        if claim == Claim::Consequence {
            named = names_in(&split(&error), units);
            named.retain(|name| name != unit);
        }
        let asked = [stop, Signal::KILL];
        let is_unasked = match exit {
            Exit::Signal(signal) => asked.iter().all(|asked| asked.as_raw() != signal),
            Exit::Code(_) => error.lines().next().is_some_and(is_panic),
        };
        Self {
            claim,
            error: Error::UnitFailed {
                unit: unit.clone(),
                exit,
                said: words.shown(),
                after: Vec::new(),
            },
            named,
            is_unasked,
        }
    }

    /// Returns true if a unit, or the agent, was killed by the signal that asked the job to end.
    pub(crate) fn has_signal_of(&self, interrupt: &Failure) -> bool {
        let Error::Interrupted { signal } = interrupt.error else {
            return false;
        };
        let killed = Exit::Signal(signal);
        match self.error {
            Error::UnitFailed { exit, .. } | Error::AgentLost { exit, .. } => exit == killed,
            _ => false,
        }
    }

    pub(crate) fn other(claim: Claim, error: Error) -> Self {
        Self {
            claim,
            error,
            named: Vec::new(),
            is_unasked: false,
        }
    }
}

/// Words of errors about the end of another unit, or about one that does not do its part: the
/// names of their codes, which `{error:?}` shows, and their sentences.
const LOSSES: &[&str] = &[
    "PeerLost",
    "AgentLost",
    "fabric.Absent",
    "fabric.Timeout",
    "UnitLost",
    "HolderLost",
    "pgas.Refused",
    "pgas.NoMemory",
    "pgas.NoPhase",
    "pgas.NotBegun",
    "fabric.PeerCorrupt",
    "fabric.HandlerPanicked",
    "WriterFailed",
    "BlockStoreLost",
    "BlockStoreSilent",
    "NoBlockStore",
    "stream.Damaged",
    "stream.RankClosed",
    "stream.NobodyReads",
    "no reader has opened the stream ",
    " before the operation was complete",
    " was lost during ",
    " has not joined: ",
    " has not begun global memory (",
    " is gone; start the job again",
    "its own error says why",
    " died while holding the lock",
    " died while step ",
    " died and no other store had a copy",
    " ended before it was complete: ",
    ": no answer from ",
    "is it stopped, or waiting for this process?",
    "is any of them still running?",
    " sent invalid data (",
    " bytes in time: wait longer, or check whether its process is stopped",
    " is not a block store, or is no longer one: ",
    ", so that step can never be complete: ",
];

/// The end of the sentence of a receive that got messages with other tags: the mistake may be the
/// unit's own.
const OTHER_TAGS: &str = "is the tag right?";

/// Returns true if the words of a unit say that it failed because another unit, or the agent, had
/// ended, did not answer, or did something wrong.
pub fn follows_a_loss(words: &str) -> bool {
    let is_loss = LOSSES.iter().any(|loss| words.contains(loss)) || blames_a_handler(words);
    is_loss && !words.contains(OTHER_TAGS)
}

/// Returns true for "handler 3 of solver.1 panicked" and "handler 3 of peer 4 panicked".
fn blames_a_handler(words: &str) -> bool {
    words.split("handler ").skip(1).any(|rest| {
        let mut words = rest.split_whitespace();
        let number = words.next().and_then(|word| word.parse::<u16>().ok());
        let is_of = words.next() == Some("of");
        let has_panicked = words.take(3).any(|word| word.starts_with("panicked"));
        number.is_some() && is_of && has_panicked
    })
}

/// What two units say if their collectives differ.
const DIFFERENT_COLLECTIVES: [&str; 2] = [
    "called the collective with different arguments",
    ": all members must call the same collectives in the same order",
];

/// What stage says if blocks of a step, or of an array, do not fit together.
const MISFITS: [&str; 3] = [" has the shape ", " at rank ", " overlap: "];

/// Splits a text into words, numbers, and names of units.
fn split(text: &str) -> Vec<&str> {
    text.split(|letter: char| !letter.is_alphanumeric() && !"._-".contains(letter))
        .map(|word| word.trim_matches('.'))
        .collect()
}

/// Returns the numbers that follow a word.
fn numbers<'a>(words: &'a [&'a str], before: &'a [&'a str]) -> impl Iterator<Item = u32> + 'a {
    let pairs = words
        .windows(2)
        .filter(move |pair| before.contains(&pair[0]));
    pairs.filter_map(|pair| pair[1].parse().ok())
}

/// Returns the units that words name: `solver.1`, `unit 3`, and `Unit(3)`.
fn names_in(words: &[&str], units: &[Name]) -> Vec<Name> {
    let by_number = numbers(words, &["unit", "Unit"]);
    let by_number = by_number.filter_map(|unit| units.get(unit as usize).cloned());
    let by_name = words.iter().filter_map(|word| {
        let (program, rank) = word.rsplit_once('.')?;
        let name = Name::unit(program, rank.parse().ok()?);
        units.contains(&name).then_some(name)
    });
    let mut named: Vec<Name> = by_number.chain(by_name).collect();
    named.sort();
    named.dedup();
    named
}

/// Returns the units between which an error finds a contradiction: two ranks of the program of
/// `speaker`, or the unit whose collective differs and the speaker. Returns nothing for other
/// errors.
fn parties(error: &str, speaker: &Name, units: &[Name]) -> Vec<Name> {
    let words = split(error);
    let says = |sentences: &[&str]| sentences.iter().any(|says| error.contains(says));
    let mut named = names_in(&words, units);
    if says(&DIFFERENT_COLLECTIVES) {
        named.push(speaker.clone());
    } else if says(&MISFITS) {
        named.retain(|name| name.program() == speaker.program());
        let ranks = numbers(&words, &["rank"]).map(|rank| Name::unit(speaker.program(), rank));
        named.extend(ranks.filter(|name| units.contains(name)));
    } else {
        named.clear();
    }
    named.sort();
    named.dedup();
    match named.len() {
        0 | 1 => Vec::new(),
        _ => named,
    }
}

/// A unit that failed, and the units between which it found a contradiction.
pub(crate) type Disagreement = (Name, Vec<Name>);

/// Returns the error to report for the failure of `unit`, the first of those that found
/// contradictions: it names the units that most of them name.
pub(crate) fn weigh(error: Error, found: &[Disagreement]) -> Error {
    let Error::UnitFailed {
        unit, exit, said, ..
    } = &error
    else {
        return error;
    };
    let mut votes: BTreeMap<&Name, usize> = BTreeMap::new();
    for name in found.iter().flat_map(|(_, named)| named) {
        *votes.entry(name).or_default() += 1;
    }
    let most = votes.values().max().copied().unwrap_or(0);
    let culprits = votes.iter().filter(|(_, votes)| **votes == most);
    Error::UnitsDisagree {
        culprits: culprits.map(|(name, _)| (*name).clone()).collect(),
        by: found.iter().map(|(name, _)| name.clone()).collect(),
        unit: unit.clone(),
        exit: *exit,
        said: said.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Stream;

    fn units() -> Vec<Name> {
        let program = |name, units| (0..units).map(move |rank| Name::unit(name, rank));
        program("writer", 3).chain(program("reader", 2)).collect()
    }

    fn failure(unit: Name, exit: Exit, words: &str) -> Failure {
        let mut last = LastWords::default();
        for line in words.lines() {
            last.hear(Stream::Stderr, line.as_bytes());
        }
        Failure::of_unit((&unit, Signal::TERM), exit, &last, &units())
    }

    fn writer(rank: u32) -> Name {
        Name::unit("writer", rank)
    }

    #[test]
    fn words_say_whether_a_unit_failed_by_itself() {
        let claim = |words| failure(writer(0), Exit::Code(1), words).claim;
        assert_eq!(claim("Error: the disk is full"), Claim::Own);
        assert_eq!(claim(""), Claim::Own);
        assert_eq!(
            claim("Error: writer.1 was lost during a barrier"),
            Claim::Consequence
        );
        let unwrapped = "thread 'main' (3) panicked at src/main.rs:3:5:\ncalled `Result::unwrap()` \
                         on an `Err` value: UnitLost { unit: Unit(3) }";
        assert_eq!(claim(unwrapped), Claim::Consequence);
        // The launcher judges in the same way whether a program prints `{e}` or `{e:?}`.
        let tag = "no message with tag 7 came from writer.1 within 1s; it sent messages with tag 8, which nobody has received: is the tag right?";
        assert_eq!(claim(tag), Claim::Own);
        let with_code = format!("{tag} [fabric.Timeout (3)]");
        assert_eq!(
            failure(writer(0), Exit::Code(1), &with_code).claim,
            Claim::Own
        );
        let panicked = "Error: handler 3 of writer.1 panicked";
        assert_eq!(claim(panicked), Claim::Consequence);
        assert_eq!(claim("Error: the handler of events panicked"), Claim::Own);
        // The reader that opened another stream says so itself.
        let unread = "Error: no reader has opened the stream wave yet, and its 2 unread steps have reached the limit";
        assert_eq!(claim(unread), Claim::Consequence);
        let misspelt = "Error: no program opened the stream wvae within 2s; did you mean wave?";
        assert_eq!(claim(misspelt), Claim::Own);
        // Of a reader, which is no rank of the stream.
        let named = failure(
            Name::unit("reader", 1),
            Exit::Code(1),
            "Error: u is f64 at rank 0 and f32 at rank 2",
        );
        assert_eq!((named.claim, named.named.len()), (Claim::Own, 0));
        assert_eq!(
            claim("Error: u has the shape [8] at rank 1 and [9] at rank 0"),
            Claim::Disagreement
        );
        assert_eq!(
            claim("Error: u is f64 at rank 7 and f32 at rank 9"),
            Claim::Own
        );
        // Two ranks in an error are no contradiction between them.
        let full = "Error: cannot write the rows of rank 0 and rank 1: the disk is full";
        assert_eq!(claim(full), Claim::Own);
        let killed = failure(
            writer(0),
            Exit::Signal(11),
            "Error: writer.1 was lost during",
        );
        assert_eq!((killed.claim, killed.is_unasked), (Claim::Signal, true));
        assert!(!failure(writer(0), Exit::Signal(15), "").is_unasked);
        let aborted = |words| failure(writer(0), Exit::Signal(6), words).claim;
        assert_eq!(aborted(unwrapped), Claim::Consequence);
        assert_eq!(aborted("double free"), Claim::Signal);
    }

    #[test]
    fn a_collective_names_both_sides() {
        for theirs in ["writer.2", "unit 2"] {
            for differs in [
                "called the collective with different arguments: the length (8 there, 9 here)",
                "called a scan, and this unit a barrier: all members must call the same collectives in the same order",
            ] {
                let words = format!("Error: {theirs} {differs}");
                let named = failure(writer(0), Exit::Code(1), &words).named;
                assert_eq!(named, [writer(0), writer(2)], "{words}");
            }
        }
    }

    /// Reports the failures of ranks that name these ranks.
    fn said(found: &[(u32, &[u32])]) -> String {
        let found: Vec<Disagreement> = found
            .iter()
            .map(|(by, named)| {
                (
                    writer(*by),
                    named.iter().map(|rank| writer(*rank)).collect(),
                )
            })
            .collect();
        let first = failure(found[0].0.clone(), Exit::Code(1), "odd");
        weigh(first.error, &found).to_string()
    }

    #[test]
    fn the_unit_that_most_of_them_name_is_the_cause() {
        // The wrong one came first, and both of the others failed.
        let error = said(&[(0, &[0, 1]), (2, &[1, 2])]);
        assert!(
            error.starts_with("writer.1 is the likely cause: writer.0 and writer.2 name it"),
            "{error}"
        );
        // It came second, and failed.
        let error = said(&[(1, &[0, 1])]);
        let sentence = "writer.1 ended with exit code 1, at odds with writer.0; the last";
        assert!(error.starts_with(sentence), "{error}");
        let error = said(&[(1, &[0, 1]), (2, &[1, 2])]);
        assert!(
            error.starts_with("writer.1 ended with exit code 1; the last"),
            "{error}"
        );
        // A third one found that two overlap.
        let error = said(&[(2, &[0, 1])]);
        assert!(
            error.starts_with("writer.0 or writer.1 is the likely cause: writer.2 names them"),
            "{error}"
        );
    }
}
