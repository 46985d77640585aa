//! What the processes of a domain have opened since it began: streams and subscriptions are
//! forgotten before a job is over, and then it is found which edges no program has used.

use super::Step;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of remembered names, of each kind, and maximum bytes of one.
const MOST: usize = 2048;
const LONGEST: usize = 200;

/// Maximum number of names of variables that are remembered of a step.
const VARIABLES: usize = 20;

/// What was opened. Very many names, and very long ones, are not remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    written: BTreeSet<String>,
    /// Streams, each with a group that has opened it for reading.
    read: BTreeSet<(String, String)>,
    /// Subscriptions to a variable that no step had: its stream and the variable, and a step with
    /// the variables that it had.
    missing: BTreeMap<(String, String), (Step, Vec<String>)>,
    /// Not everything was remembered.
    is_full: bool,
}

impl History {
    /// A program has opened a stream for writing.
    pub(super) fn wrote(&mut self, stream: &str) {
        if self.written.contains(stream) {
            return;
        }
        match self.written.len() < MOST && stream.len() <= LONGEST {
            true => self.written.insert(stream.to_owned()),
            false => std::mem::replace(&mut self.is_full, true),
        };
    }

    /// A group has opened a stream for reading.
    pub(super) fn read(&mut self, stream: &str, group: &str) {
        let is_short = stream.len().max(group.len()) <= LONGEST;
        let opened = (stream.to_owned(), group.to_owned());
        if self.read.contains(&opened) {
            return;
        }
        match self.read.len() < MOST && is_short {
            true => self.read.insert(opened),
            false => std::mem::replace(&mut self.is_full, true),
        };
    }

    /// A step has a variable to which a process has subscribed, or has only those in `there`.
    pub(super) fn looked(
        &mut self,
        stream: &str,
        variable: &str,
        there: Option<(Step, Vec<String>)>,
    ) {
        let subscribed = (stream.to_owned(), variable.to_owned());
        let Some(there) = there else {
            self.missing.remove(&subscribed);
            return;
        };
        let is_short = stream.len().max(variable.len()) <= LONGEST;
        if is_short && self.missing.len() < MOST / 8 {
            self.missing.insert(subscribed, there);
        }
    }

    /// Returns the streams that were opened for writing, of which `is_it` holds, unless one of them
    /// is `stream`, or not all are known.
    pub(crate) fn written_instead(
        &self,
        stream: &str,
        is_it: impl Fn(&str) -> bool,
    ) -> Option<Vec<&str>> {
        let is_known = !self.is_full && !self.written.contains(stream);
        let written = || self.written.iter().map(String::as_str);
        is_known.then(|| written().filter(|name| is_it(name)).collect())
    }

    /// Returns the streams that a group has opened for reading, unless one of them is `stream`, or
    /// not all are known.
    pub(crate) fn read_instead(&self, stream: &str, group: &str) -> Option<Vec<&str>> {
        let opened = (stream.to_owned(), group.to_owned());
        let is_known = !self.is_full && !self.read.contains(&opened);
        let own = || self.read.iter().filter(|(_, reader)| reader == group);
        is_known.then(|| own().map(|(stream, _)| stream.as_str()).collect())
    }

    /// Returns the subscriptions to variables that no step had: the stream, the variable, a step,
    /// and the variables of that step.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&str, &str, Step, &[String])> {
        let missing = self.missing.iter();
        missing.map(|((stream, variable), (step, there))| {
            (stream.as_str(), variable.as_str(), *step, &there[..])
        })
    }
}

/// Returns some of the names of the variables of a step, each once.
pub(super) fn some_names<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut some: Vec<String> = Vec::new();
    for name in names.filter(|name| name.len() <= LONGEST) {
        if some.len() == VARIABLES {
            break;
        }
        if !some.iter().any(|known| known == name) {
            some.push(name.to_owned());
        }
    }
    some
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that was not remembered may have been opened.
    #[test]
    fn what_is_not_remembered_may_have_been_there() {
        let mut history = History::default();
        for number in 0..MOST {
            history.wrote(&number.to_string());
            history.wrote(&number.to_string());
        }
        let known = history.written_instead("other", |name| name == "7");
        assert_eq!(known, Some(vec!["7"]));
        assert_eq!(history.read_instead("other", "viewer"), Some(Vec::new()));
        history.read(&"x".repeat(LONGEST + 1), "viewer");
        assert_eq!(history.read_instead("other", "viewer"), None);
        history.wrote("one more");
        assert_eq!(history.written_instead("other", |_| true), None);
        for number in 0..MOST {
            history.looked("field", &number.to_string(), Some((0, Vec::new())));
        }
        assert_eq!(history.missing().count(), MOST / 8);
    }
}
