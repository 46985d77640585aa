//! Meetings: processes that wait for each other, by a name and a number of them.
//!
//! Who has once come to a meeting is a member of it, and it is held as often as all come again. If
//! a member is lost, the meeting is broken: those that wait are told, and those that come later.
//! The name is free again when all members are gone.

use super::{Process, Ticket};
use std::collections::{BTreeMap, BTreeSet};

/// What a process brings to a meeting.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
struct Here {
    who: Process,
    ticket: Ticket,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
struct Meeting {
    count: u64,
    here: Vec<Here>,
    members: BTreeSet<Process>,
    /// The first member that was lost.
    lost: Option<Process>,
}

/// All meetings of a server.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Meetings(BTreeMap<String, Meeting>);

/// What becomes of those that wait.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// It waits.
    Waits,
    /// All are here: each gets what all have brought, in the order of their coming.
    Met {
        to: Vec<(Process, Ticket)>,
        all: Vec<(Process, Vec<u8>)>,
    },
    /// A member is lost.
    Broken {
        to: Vec<(Process, Ticket)>,
        lost: Process,
    },
    /// Others meet in another number under that name.
    Differs { count: u64 },
}

impl Meetings {
    /// Returns true if a meeting of that name has members.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the bytes that those have brought that wait for a meeting.
    pub(super) fn brought(&self, name: &str) -> usize {
        let here = self.0.get(name).map(|meeting| &meeting.here);
        here.map_or(0, |here| here.iter().map(|one| one.bytes.len()).sum())
    }

    /// A process comes. What it brings is kept until all are here.
    pub(super) fn come(
        &mut self,
        name: &str,
        count: u64,
        (who, ticket): (Process, Ticket),
        bytes: Vec<u8>,
    ) -> Outcome {
        let meeting = self.0.entry(name.to_owned()).or_default();
        if meeting.members.is_empty() {
            meeting.count = count;
        }
        if meeting.count != count {
            let count = meeting.count;
            return Outcome::Differs { count };
        }
        meeting.members.insert(who);
        if let Some(lost) = meeting.lost {
            let to = vec![(who, ticket)];
            return Outcome::Broken { to, lost };
        }
        meeting.here.push(Here { who, ticket, bytes });
        if (meeting.here.len() as u64) < count {
            return Outcome::Waits;
        }
        let here = std::mem::take(&mut meeting.here);
        Outcome::Met {
            to: here.iter().map(|here| (here.who, here.ticket)).collect(),
            all: here
                .into_iter()
                .map(|here| (here.who, here.bytes))
                .collect(),
        }
    }

    /// A process no longer waits.
    pub(super) fn leave(&mut self, name: &str, (who, ticket): (Process, Ticket)) {
        if let Some(meeting) = self.0.get_mut(name) {
            let is_it = |here: &Here| (here.who, here.ticket) == (who, ticket);
            meeting.here.retain(|here| !is_it(here));
        }
    }

    /// Returns the processes that wait.
    pub(super) fn here(&self, name: &str) -> Vec<Process> {
        let here = self.0.get(name).map(|meeting| &meeting.here);
        here.into_iter().flatten().map(|here| here.who).collect()
    }

    /// Returns the processes that have come before, and are not here now.
    pub(super) fn absent(&self, name: &str) -> Vec<Process> {
        let absent = self.0.get(name).into_iter().flat_map(|meeting| {
            let is_here = |who: &Process| meeting.here.iter().any(|here| here.who == *who);
            meeting.members.iter().filter(move |who| !is_here(who))
        });
        absent.copied().collect()
    }

    /// A process is lost: its meetings are broken.
    pub(super) fn lost(&mut self, process: Process) -> Vec<Outcome> {
        let mut broken = Vec::new();
        self.0.retain(|_, meeting| {
            if !meeting.members.remove(&process) {
                return true;
            }
            let lost = *meeting.lost.get_or_insert(process);
            meeting.here.retain(|here| here.who != process);
            let here = std::mem::take(&mut meeting.here);
            let to: Vec<_> = here.iter().map(|here| (here.who, here.ticket)).collect();
            if !to.is_empty() {
                broken.push(Outcome::Broken { to, lost });
            }
            !meeting.members.is_empty()
        });
        broken
    }

    /// Returns the number of names.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::tests::process;

    fn come(meetings: &mut Meetings, who: usize, ticket: u64) -> Outcome {
        meetings.come("noon", 3, (process(who), Ticket(ticket)), vec![who as u8])
    }

    #[test]
    fn all_get_what_all_have_brought() {
        let mut meetings = Meetings::default();
        for round in 0..3 {
            for who in [2, 1] {
                assert_eq!(come(&mut meetings, who, round), Outcome::Waits);
            }
            let met = come(&mut meetings, 3, round);
            let order = [2, 1, 3];
            let each = order.map(|who| (process(who), Ticket(round)));
            let all = order.map(|who| (process(who), vec![who as u8]));
            let (to, all) = (each.to_vec(), all.to_vec());
            assert_eq!(met, Outcome::Met { to, all });
        }
        let count = meetings.come("noon", 2, (process(9), Ticket(0)), Vec::new());
        assert_eq!(count, Outcome::Differs { count: 3 });
    }

    #[test]
    fn a_lost_member_breaks_it_until_all_are_gone() {
        let mut meetings = Meetings::default();
        come(&mut meetings, 1, 1);
        come(&mut meetings, 2, 1);
        meetings.leave("noon", (process(2), Ticket(1)));
        assert_eq!(meetings.here("noon"), [process(1)]);
        assert_eq!(meetings.absent("noon"), [process(2)]);
        let lost = process(2);
        let to = vec![(process(1), Ticket(1))];
        assert_eq!(meetings.lost(lost), [Outcome::Broken { to, lost }]);
        let to = vec![(process(3), Ticket(7))];
        assert_eq!(come(&mut meetings, 3, 7), Outcome::Broken { to, lost });
        assert_eq!(meetings.lost(process(1)), []);
        assert_eq!(meetings.len(), 1);
        assert_eq!(meetings.lost(process(3)), []);
        assert_eq!(meetings.len(), 0);
    }
}
