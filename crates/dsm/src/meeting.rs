//! Locks, barriers and rendezvous.

use crate::chunk::{Chunk, Elem};
use crate::client::millis;
use crate::dsm::Dsm;
use crate::error::{Error, Result};
use crate::guard::Held;
use crate::protocol::{Answer, Fault, Mode, Process, Request, Token};
use std::sync::atomic::Ordering;

/// A lock that this process holds, until it is dropped. A process that dies, or is stopped for two
/// seconds while others wait, loses it. Thread: any.
#[derive(Debug)]
pub struct LockGuard {
    held: Held<u8>,
}

impl LockGuard {
    /// Returns its fencing token, which is larger than those of all earlier holders. Only while the
    /// lock is held, [`WriteGuard::commit_under`](crate::WriteGuard::commit_under) commits.
    pub fn token(&self) -> Token {
        Token {
            guard: self.held.guard,
            lock: self.held.chunk.id(),
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // ORDERING: as in `has_locks`.
        let locks = &self.held.chunk.client.locks;
        locks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Dsm {
    /// Waits until nobody else holds the lock of that name, and returns it. Locks are given first
    /// come, first served. A lock is an empty chunk of that name.
    ///
    /// # Errors
    /// [`Error::Late`], which names the process that holds it.
    pub fn lock(&self, name: &str) -> Result<LockGuard> {
        let chunk: Chunk<u8> = self.alloc(name, 0)?;
        let held = chunk.acquire_at_home(Mode::Write)?.held;
        // ORDERING: as in `has_locks`.
        chunk.client.locks.fetch_add(1, Ordering::Relaxed);
        Ok(LockGuard { held })
    }

    /// Waits until `count` processes have called it with that name. It can be called again and
    /// again. Collective: the `count` processes, among which are all that have ever called it with
    /// that name, and still run.
    ///
    /// # Errors
    /// [`Error::Broken`]: one of them has died or left. [`Error::Missing`], which names those that
    /// had come.
    pub fn barrier(&self, name: &str, count: u64) -> Result<()> {
        self.meet(name, count, Vec::new()).map(drop)
    }

    /// As [`Dsm::barrier`], and each process gets what all have brought, in the order of their
    /// coming: the same in all of them. Each brings at most 256 KiB, and all of them 4 MiB.
    ///
    /// # Errors
    /// As [`Dsm::barrier`]; [`Error::NoMemory`]: it brings too much, or others have.
    pub fn rendezvous<T: Elem>(
        &self,
        name: &str,
        count: u64,
        brought: &[T],
    ) -> Result<Vec<(Process, Vec<T>)>> {
        let bytes = bytemuck::cast_slice(brought).to_vec();
        let all = self.meet(name, count, bytes)?.into_iter();
        let each = all.map(|(process, bytes)| {
            let mut elements = vec![T::zeroed(); bytes.len() / size_of::<T>().max(1)];
            let to: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
            if to.len() != bytes.len() {
                return Err(Error::Nonsense(format!(
                    "{} bytes of {process}",
                    bytes.len()
                )));
            }
            to.copy_from_slice(&bytes);
            Ok((process, elements))
        });
        each.collect()
    }

    fn meet(&self, name: &str, count: u64, bytes: Vec<u8>) -> Result<Vec<(Process, Vec<u8>)>> {
        let log = &self.client().log;
        let began = log.meets(name);
        let met = self.ask_meeting(name, count, bytes);
        log.met(began, name, met.as_ref().err());
        met
    }

    fn ask_meeting(
        &self,
        name: &str,
        count: u64,
        bytes: Vec<u8>,
    ) -> Result<Vec<(Process, Vec<u8>)>> {
        let client = self.client();
        let after = client.fabric.deadline();
        let request = Request::Meet {
            name: name.to_owned(),
            count: count.max(1),
            bytes,
            timeout: millis(after),
        };
        let meeting = name.to_owned();
        let home = client.topology.home(name);
        match client.ask(home, after, "others at a meeting", &request)? {
            Answer::Met(all) => Ok(all),
            Answer::Failed(Fault::Broken { lost }) => Err(Error::Broken {
                meeting,
                lost: client.named(lost),
            }),
            Answer::Failed(Fault::Missing { here, absent }) => Err(Error::Missing {
                meeting,
                count,
                after,
                here: here.into_iter().map(|who| client.named(who)).collect(),
                absent: absent.into_iter().map(|who| client.named(who)).collect(),
            }),
            Answer::Failed(Fault::OtherCount { count: other }) => Err(Error::OtherCount {
                meeting,
                count: other,
                asked: count,
            }),
            Answer::Failed(Fault::BadName) => Err(Error::BadName(meeting)),
            Answer::Failed(Fault::TooMany { most }) => Err(Error::TooMany { most }),
            Answer::Failed(Fault::NoMemory { bytes, why }) => Err(Error::NoMemory {
                chunk: meeting,
                bytes,
                why,
            }),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }
}
