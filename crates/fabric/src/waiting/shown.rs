//! What a process waits for, published in the memory of its node, so that others can show it.
//!
//! A process publishes the wait of the thread that drives. It does so before the second sleep of
//! that wait. As no sleep is longer than 100 ms, a wait that is over sooner costs nothing, and a
//! longer one some stores. The end of the wait withdraws it.
//!
//! It is for display only: any process of the domain can write these words, so a reader copies them
//! and believes only that they are some text and numbers.

use super::Waiting;
use crate::fabric::{Core, Fabric};
use crate::node::{IDLE, State, TEXT_MAX, WaitRecord};
use crate::{Expected, PeerId, Whom};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// What a wait is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct For {
    pub(crate) what: &'static str,
    pub(crate) whom: Whom,
    /// The number of peers that it waits for beside `whom`.
    pub(crate) others: usize,
}

/// A process of this node that has waited for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerWait {
    /// The process.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: u32,
    /// What it waits for.
    pub what: String,
    /// The party that it waits for, or the first of them.
    pub whom: Whom,
    /// The number of peers that it waits for beside `whom`.
    pub others: u32,
    /// The message that it waits for, if it is one. The tags of others that came are not known.
    pub message: Option<Expected>,
    /// How long it has waited.
    pub waited: Duration,
}

const ANY: u64 = 1 << 32;
const AGENT: u64 = 2 << 32;

impl WaitRecord {
    fn new(of: For, message: Option<&Expected>, since: Duration) -> WaitRecord {
        let whom = match of.whom {
            Whom::Peer(peer) => peer.0.into(),
            Whom::Any => ANY,
            Whom::Agent => AGENT,
        };
        let (kind, tag, mask) = match message {
            None => (0, 0, 0),
            Some(Expected::Message { tag, mask, .. }) => (1, *tag, *mask),
            Some(Expected::Rest { tag }) => (2, *tag, 0),
            Some(Expected::Receipt { tag }) => (3, *tag, 0),
            Some(Expected::Signal { key }) => (4, *key, 0),
        };
        let text = &of.what[..of.what.floor_char_boundary(TEXT_MAX)];
        let (since, others) = (since.as_nanos() as u64, of.others as u64);
        WaitRecord {
            words: [since, whom, others, kind, tag, mask, text.len() as u64],
            text: text.as_bytes().to_vec(),
        }
    }

    fn read(&self, (peer, incarnation): (PeerId, u32), now: Duration) -> PeerWait {
        let [since, whom, others, kind, tag, mask, _] = self.words;
        let text = String::from_utf8_lossy(&self.text);
        PeerWait {
            peer,
            incarnation,
            what: text.chars().filter(|letter| !letter.is_control()).collect(),
            whom: match whom {
                ANY => Whom::Any,
                AGENT => Whom::Agent,
                peer => Whom::Peer(PeerId(peer as u32)),
            },
            others: others.min(u32::MAX.into()) as u32,
            message: match kind {
                1 => Some(Expected::Message {
                    tag,
                    mask,
                    others: Vec::new(),
                }),
                2 => Some(Expected::Rest { tag }),
                3 => Some(Expected::Receipt { tag }),
                4 => Some(Expected::Signal { key: tag }),
                _ => None,
            },
            waited: now.saturating_sub(Duration::from_nanos(since)),
        }
    }
}

/// The time, by a clock that is the same for all processes of a node.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

impl Waiting<'_> {
    /// Publishes what this thread waits for, unless that is published already.
    #[cold]
    pub(super) fn show(&mut self, core: &mut Core) {
        let Some(mut of) = self.of else { return };
        if self.shown != 0 && self.shown == core.shown {
            return;
        }
        core.shown += 1;
        self.shown = core.shown;
        of.whom = core.engine.whom_of(of.whom, self.key);
        let message = self.key.and_then(|key| core.engine.expected(key));
        let record = WaitRecord::new(of, message.as_ref(), now().saturating_sub(self.waited()));
        let node = &self.fabric.node;
        node.layout.show_wait(node.me, self.shown, &record);
    }
}

impl Fabric {
    /// Returns which other processes of this node have waited for more than a moment (100 ms), and
    /// for what: of each, the thread that drives. Services that are idle are left out. For display:
    /// it is what these processes say.
    pub fn waits(&self) -> Vec<PeerWait> {
        let node = &self.0.node;
        let now = now();
        let mut waits = Vec::new();
        for slot in (0..node.layout.peers.used()).map(crate::peer::Slot) {
            let before = node.layout.peers.state(slot);
            let (State::Alive, incarnation) = before else {
                continue;
            };
            let Some(record) = node.layout.shown_wait(slot).filter(|_| slot != node.me) else {
                continue;
            };
            if node.layout.peers.state(slot) == before && record.text != IDLE.as_bytes() {
                waits.push(record.read((slot.of(node.number), incarnation), now));
            }
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(of: For, message: Option<&Expected>) -> PeerWait {
        let record = WaitRecord::new(of, message, Duration::from_secs(3));
        record.read((PeerId(4), 2), Duration::from_secs(5))
    }

    #[test]
    fn what_is_published_is_read() {
        let receive = Expected::Message {
            tag: 7,
            mask: u64::MAX,
            others: Vec::new(),
        };
        let messages = [
            None,
            Some(receive),
            Some(Expected::Rest { tag: 8 }),
            Some(Expected::Receipt { tag: 9 }),
            Some(Expected::Signal { key: 10 }),
        ];
        let parties = [Whom::Any, Whom::Agent, Whom::Peer(PeerId(0))];
        for message in messages {
            for whom in parties {
                let (what, others) = ("a barrier", 3);
                let of = For { what, whom, others };
                let read = told(of, message.as_ref());
                assert_eq!((read.peer, read.incarnation), (PeerId(4), 2));
                assert_eq!((read.whom, read.others), (whom, 3));
                assert_eq!(read.what, what);
                assert_eq!(read.message, message);
                assert_eq!(read.waited, Duration::from_secs(2));
            }
        }
    }

    /// Any process can write anything there.
    #[test]
    fn words_of_a_hostile_process_are_some_text() {
        let record = WaitRecord {
            words: std::array::from_fn(|_| u64::MAX),
            text: b"\x1b[2J\xff\nx".to_vec(),
        };
        let read = record.read((PeerId(0), 1), Duration::ZERO);
        assert_eq!(read.what, "[2J\u{fffd}x");
        assert_eq!(read.others, u32::MAX);
        assert_eq!(read.waited, Duration::ZERO);
    }
}
