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

/// A step that lacks a variable, and some of those that it has.
type Without = (Step, Vec<String>);

/// What was opened. Very many names, and very long ones, are not remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    written: BTreeSet<String>,
    /// Streams, each with a group that has opened it for reading.
    read: BTreeSet<(String, String)>,
    /// Streams to which a process has subscribed: it names no group.
    watched: BTreeSet<String>,
    /// Subscribed variables, each of a stream, with a step that lacked the variable.
    /// `None`: a step had it.
    missing: BTreeMap<(String, String), Option<Without>>,
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

    /// A process has subscribed to a variable of a stream.
    pub(super) fn watched(&mut self, stream: &str) {
        if self.watched.contains(stream) {
            return;
        }
        match self.watched.len() < MOST && stream.len() <= LONGEST {
            true => self.watched.insert(stream.to_owned()),
            false => std::mem::replace(&mut self.is_full, true),
        };
    }

    /// A step has a variable to which a process has subscribed, or has only those in `there`.
    pub(super) fn looked(&mut self, stream: &str, variable: &str, there: Option<Without>) {
        let subscribed = (stream.to_owned(), variable.to_owned());
        let is_short = stream.len().max(variable.len()) <= LONGEST;
        let has_room = is_short
            && match there {
                None => self.missing.len() < MOST,
                Some(_) => self.missing.values().flatten().count() < MOST / 8,
            };
        match self.missing.get_mut(&subscribed) {
            Some(known) if there.is_none() => *known = None,
            Some(_) => {}
            None if has_room => {
                self.missing.insert(subscribed, there);
            }
            None => {}
        }
    }

    /// Returns the streams that were opened, unless not all are known.
    pub(crate) fn opened(&self) -> Option<BTreeSet<String>> {
        let read = || self.read.iter().map(|(stream, _)| stream);
        let used = || self.written.iter().chain(&self.watched).chain(read());
        let opened = || used().cloned().collect();
        (!self.is_full).then(opened)
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

    /// Returns the streams that a group has opened for reading, unless one of them is `stream`, a
    /// process has subscribed to `stream`, or not all are known.
    pub(crate) fn read_instead(&self, stream: &str, group: &str) -> Option<Vec<&str>> {
        let opened = (stream.to_owned(), group.to_owned());
        let is_used = self.read.contains(&opened) || self.watched.contains(stream);
        let is_known = !self.is_full && !is_used;
        let own = || self.read.iter().filter(|(_, reader)| reader == group);
        is_known.then(|| own().map(|(stream, _)| stream.as_str()).collect())
    }

    /// Returns the subscriptions to variables that no step had: the stream, the variable, a step,
    /// and the variables of that step.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&str, &str, Step, &[String])> {
        self.missing.iter().filter_map(|(subscribed, there)| {
            let ((stream, variable), (step, there)) = (subscribed, there.as_ref()?);
            Some((stream.as_str(), variable.as_str(), *step, &there[..]))
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

    /// A later subscription begins at a step without the variable.
    #[test]
    fn a_variable_that_was_there_is_not_missing() {
        let mut history = History::default();
        let others = || Some((11, vec!["v".to_owned()]));
        history.looked("field", "w", None);
        history.looked("field", "w", others());
        assert_eq!(history.missing().count(), 0);
        history.looked("field", "u", others());
        let missing: Vec<_> = history.missing().collect();
        assert_eq!(missing, [("field", "u", 11, &["v".to_owned()][..])]);
        history.looked("field", "u", None);
        history.looked("field", "u", others());
        assert_eq!(history.missing().count(), 0);
    }

    /// Who subscribes reads, though as no group.
    #[test]
    fn a_subscription_is_a_use() {
        let mut history = History::default();
        assert_eq!(history.read_instead("field", "viewer"), Some(Vec::new()));
        history.watched("field");
        assert_eq!(history.read_instead("field", "viewer"), None);
        assert_eq!(history.read_instead("other", "viewer"), Some(Vec::new()));
    }

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
        history.read("other", "viewer");
        let opened = history.opened().expect("all are known");
        assert!(opened.len() == MOST + 1 && opened.contains("other"));
        history.read("other", "viewer");
        history.read(&"x".repeat(LONGEST + 1), "viewer");
        assert_eq!(history.read_instead("other", "viewer"), None);
        history.wrote("one more");
        assert_eq!(history.written_instead("other", |_| true), None);
        assert_eq!(history.opened(), None);
        for number in 0..MOST {
            history.looked("field", &number.to_string(), Some((0, Vec::new())));
        }
        assert_eq!(history.missing().count(), MOST / 8);
    }
}
