//! The barrier of a list of peers: one message to its first member, the root, and one back. On one
//! node a tree would only add latency.
//!
//! ```text
//!   member -> root   COME attempt    it is at the barrier
//!                    BACK attempt    it is no longer: its deadline was over
//!   root -> member   GO   attempt    everybody has come
//! ```
//! They travel as signals, whose keys say which of these, a hash of the list, and the attempt,
//! which a member counts.
//!
//! # Invariants
//! G1 The root lets the members go in the turn in which it knows of all of them that they have come
//!    and not gone back; what it knew when it gave up itself stays true.
//! G2 GO answers one attempt. One that comes after its member went back lets nobody pass another
//!    barrier.
//!
//! Not guaranteed: a member whose deadline is over while GO is on its way ends with
//! [`Error::Timeout`], the others do not. Two lists with one root and one hash are one barrier.

use crate::engine::Engine;
use crate::fabric::Fabric;
use crate::wire::kind;
use crate::{Error, PeerId, Result, Whom};
use std::collections::HashMap;

/// The keys of barriers begin here; those of users lie below.
pub(crate) const KEYS: u64 = 1 << 63;

const COME: u64 = 0;
const BACK: u64 = 1;
const GO: u64 = 2;

/// Lists of one peer at whose barrier it is or was.
const LISTS_MAX: usize = 1 << 12;

/// What a peer has said of its barriers, by list.
#[derive(Debug, Default)]
pub(crate) struct Barriers(HashMap<u64, Said>);

/// Attempts begin at 1; 0 is none.
#[derive(Debug, Default)]
struct Said {
    come: u64,
    go: u64,
}

/// Which list: 29 bits of it.
fn hash(members: &[PeerId]) -> u64 {
    let fnv = |hash: u64, peer: &PeerId| (hash ^ peer.0 as u64).wrapping_mul(0x100_0000_01b3);
    members.iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 35
}

fn key(step: u64, list: u64, attempt: u64) -> u64 {
    KEYS | step << 61 | list << 32 | attempt
}

impl Fabric {
    /// Waits until all `members` are at this barrier. Collective: every member with the same list,
    /// in one thread at a time: of two threads that come with one list neither may get through. A
    /// member whose deadline is over is no longer at it, and may come again.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`], which names the first one at the first member that
    /// has not come, at the others the first member.
    pub fn barrier(&self, members: &[PeerId]) -> Result<()> {
        let Some((root, others)) = members.split_first() else {
            return Ok(());
        };
        let list = hash(members);
        match *root == self.me() {
            true => self.gather(others, list),
            false => self.come(*root, list),
        }
    }

    fn gather(&self, others: &[PeerId], list: u64) -> Result<()> {
        let Some(first) = others.first() else {
            return Ok(());
        };
        let mut missing = 0;
        let mut gather = |engine: &mut Engine| {
            loop {
                match others.get(missing) {
                    Some(other) if engine.has_come(*other, list) => missing += 1,
                    Some(other) => return engine.gone(*other).map(Err),
                    None => {}
                }
                if missing == others.len() {
                    // Somebody may have gone back while the others came (G1).
                    let gone_back = others.iter().position(|one| !engine.has_come(*one, list));
                    let Some(index) = gone_back else {
                        return Some(Ok(()));
                    };
                    missing = index;
                }
            }
        };
        let gathered =
            self.after_announcement(|| self.wait("a barrier", Whom::Peer(*first), &mut gather)?);
        match gathered {
            Err(Error::Timeout { what, after, .. }) => {
                let whom = Whom::Peer(*others.get(missing).unwrap_or(first));
                return Err(Error::Timeout { what, whom, after });
            }
            gathered => gathered?,
        }
        let mut ended = Ok(());
        for other in others {
            let attempt = self.0.lock()?.engine.take_come(*other, list);
            let told = self.signal_any(*other, key(GO, list, attempt));
            ended = ended.and(told);
        }
        ended
    }

    fn come(&self, root: PeerId, list: u64) -> Result<()> {
        let attempt = self.0.lock()?.engine.next_attempt();
        self.signal_any(root, key(COME, list, attempt))?;
        let ended = self.wait("a barrier", Whom::Peer(root), |engine| {
            if engine.take_go(root, list, attempt) {
                return Some(Ok(()));
            }
            engine.gone(root).map(Err)
        });
        if ended.is_err() {
            let core = &mut *self.0.lock()?;
            let back = key(BACK, list, attempt);
            core.engine.post(root, kind::SIGNAL, back, &[]);
            core.flush();
        }
        ended?
    }
}

impl Engine {
    fn next_attempt(&mut self) -> u64 {
        self.attempts = (self.attempts + 1) & 0xffff_ffff;
        self.attempts = self.attempts.max(1);
        self.attempts
    }

    /// A signal with a key from [`KEYS`] on.
    pub(crate) fn barrier_arrived(&mut self, from: PeerId, key: u64) -> Result<(), &'static str> {
        let (step, list, attempt) = (key >> 61 & 3, key >> 32 & 0x1fff_ffff, key & 0xffff_ffff);
        let lists = &mut self.peer(from).barriers.0;
        if lists.len() >= LISTS_MAX && !lists.contains_key(&list) {
            return Err("more barriers than anybody waits at");
        }
        let said = lists.entry(list).or_default();
        match step {
            COME if attempt != 0 => said.come = attempt,
            // One that was let go meanwhile has nothing to take back.
            BACK if said.come == attempt => said.come = 0,
            BACK => {}
            GO => said.go = attempt,
            _ => return Err("the key of a signal"),
        }
        if (said.come, said.go) == (0, 0) {
            lists.remove(&list);
        }
        Ok(())
    }

    fn has_come(&self, from: PeerId, list: u64) -> bool {
        let said = self
            .peers
            .get(from)
            .and_then(|peer| peer.barriers.0.get(&list));
        said.is_some_and(|said| said.come != 0)
    }

    fn take_come(&mut self, from: PeerId, list: u64) -> u64 {
        let said = self.peer(from).barriers.0.remove(&list);
        said.map_or(0, |said| said.come)
    }

    /// Whether the root has let this attempt go (G2).
    fn take_go(&mut self, root: PeerId, list: u64, attempt: u64) -> bool {
        let lists = &mut self.peer(root).barriers.0;
        let is_it = lists.get(&list).is_some_and(|said| said.go == attempt);
        if is_it {
            lists.remove(&list);
        }
        is_it
    }
}
