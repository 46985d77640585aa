//! Guards, commits and events of chunks. Rank 0 measures; rank 1 writes the versions that it
//! misses, reads those that it writes next, and answers its commits.

use super::Unit;
use crate::control::Command;
use anyhow::{Result, bail, ensure};
use samite::Match;
use samite::dsm::{Chunk, Dsm, Policy, Topology, Version};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The tag of the messages of a round trip.
const TRIP: u64 = 13;

impl Unit {
    /// Runs `chunk KIND OF BYTES ITERS WARMUP`.
    pub(super) fn coherence(&self, command: &Command) -> Result<Option<f64>> {
        let (kind, of) = (command.word(1), command.word(2));
        let bytes = command.number(3)?;
        let (iters, warmup) = (command.number(4)?, command.number(5)?);
        let dsm = match kind {
            "event-own" => self.hosted()?.clone(),
            _ => Dsm::join(&self.fabric)?,
        };
        let chunk = |rank: usize| dsm.alloc::<u8>(&format!("{rank} has {bytes} bytes"), bytes);
        let chunks = [chunk(0)?, chunk(1)?];
        self.once(&dsm, kind, &chunks, warmup)?;
        self.meet_serving(&dsm)?;
        let took = self.once(&dsm, kind, &chunks, iters)?;
        self.meet_serving(&dsm)?;
        let answer = match of {
            "seconds" => took.as_secs_f64(),
            "trips" => {
                self.trips(warmup)?;
                took.as_secs_f64() / self.trips(iters)?.as_secs_f64()
            }
            _ => return Ok(None),
        };
        let own = chunks[self.rank].snapshot()?;
        ensure!(
            own.iter().all(|byte| u64::from(*byte) == own.tag() % 256),
            "the content is not that of its version"
        );
        Ok(Some(answer))
    }

    /// Joins with a topology in which each rank is the home of the chunks that it writes.
    pub(super) fn hosted(&self) -> Result<&Dsm> {
        if let Some(dsm) = self.hosted.get() {
            return Ok(dsm);
        }
        let program = &self.fabric.identity().program;
        let mut topology = "[[server]]\nname = \"agent\"\n".to_owned();
        for rank in 0..self.members.len() {
            topology += &format!(
                "[[server]]\nname = \"{rank}\"\nprogram = {program:?}\nrank = {rank}\n\
                 [[chunk]]\nname = \"{rank} has*\"\nhome = \"{rank}\"\n"
            );
        }
        let topology = Arc::new(Topology::parse(&topology)?);
        let dsm = Dsm::join_with(&self.fabric, topology)?;
        Ok(self.hosted.get_or_init(|| dsm))
    }

    /// Waits for the other ranks, and serves their requests meanwhile.
    pub(super) fn meet_serving(&self, dsm: &Dsm) -> Result<()> {
        Ok(dsm.barrier("all ranks", self.members.len() as u64)?)
    }

    /// Returns how long rank 0 takes for that many operations.
    fn once(&self, dsm: &Dsm, kind: &str, chunks: &[Chunk<u8>; 2], iters: u64) -> Result<Duration> {
        let chunk = &chunks[0];
        let content = |tag: u64| vec![(tag % 256) as u8; chunk.len() as usize];
        let first = content(1);
        match kind {
            "event" | "event-own" => return self.events(dsm, chunks, iters),
            // The first read of a version that another process has committed.
            "miss" => {
                let write = || {
                    chunk
                        .put(&first, 1)
                        .map(|_| ())
                        .map_err(anyhow::Error::from)
                };
                return self.after_the_other(dsm, iters, write, || {
                    drop(black_box(chunk.read()?));
                    Ok(())
                });
            }
            // A guard to write what another process may read without asking.
            "upgrade" => {
                if self.rank == 0 {
                    chunk.put(&first, 1)?;
                }
                let read = || {
                    drop(black_box(chunk.read()?));
                    Ok(())
                };
                return self.after_the_other(dsm, iters, read, || {
                    drop(chunk.write()?);
                    Ok(())
                });
            }
            _ => {}
        }
        if self.rank != 0 {
            return Ok(Duration::ZERO);
        }
        chunk.put(&first, 1)?;
        drop(chunk.read()?);
        let begin = Instant::now();
        for _ in 0..iters {
            match kind {
                "hit" => _ = black_box(chunk.read()?[0]),
                "commit" => {
                    let mut guard = chunk.write()?;
                    guard.copy_from_slice(&first);
                    guard.commit(1)?;
                }
                _ => bail!("there is no guard called {kind}"),
            }
        }
        Ok(begin.elapsed())
    }

    /// Rank 1 does `before`, then rank 0 does `this`, and so on. Returns how long rank 0 takes.
    /// Meanwhile rank 1 waits for the server, too: it does not spin, so a server without a
    /// processor of its own gets that of rank 1.
    fn after_the_other(
        &self,
        dsm: &Dsm,
        iters: u64,
        before: impl Fn() -> Result<()>,
        this: impl Fn() -> Result<()>,
    ) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for _ in 0..iters {
            if self.rank == 1 {
                before()?;
            }
            self.meet_serving(dsm)?;
            if self.rank == 0 {
                let begin = Instant::now();
                this()?;
                took += begin.elapsed();
            }
            self.meet_serving(dsm)?;
        }
        Ok(took)
    }

    /// Each rank commits to its chunk when it hears of a commit to the other's. Returns the time
    /// from a commit to its event.
    fn events(&self, dsm: &Dsm, chunks: &[Chunk<u8>; 2], iters: u64) -> Result<Duration> {
        let (own, other) = (&chunks[self.rank], &chunks[1 - self.rank]);
        let present = |chunk: &Chunk<u8>| Ok::<Version, anyhow::Error>(chunk.snapshot()?.version());
        own.put(&vec![0_u8; own.len() as usize], 0)?;
        // The bytes of each version are equal: to write them is not what is measured.
        let put = || {
            let draft = own.draft()?;
            let byte = draft[0];
            draft.put(byte.into())
        };
        self.meet_serving(dsm)?;
        let mut last = present(other)?;
        let mut events = other.subscribe(Policy::Every, last)?;
        self.meet_serving(dsm)?;
        let begin = Instant::now();
        for _ in 0..iters {
            if self.rank == 0 {
                put()?;
            }
            let event = events.next_event()?;
            ensure!(
                event.version == last.next(),
                "an event is missing, or came twice"
            );
            last = event.version;
            if self.rank == 1 {
                put()?;
            }
        }
        Ok(begin.elapsed() / 2)
    }

    /// Returns the time of that many round trips of eight bytes between the ranks.
    fn trips(&self, iters: u64) -> Result<Duration> {
        let other = self.members[1 - self.rank];
        let mut bytes = [0; 8];
        self.fabric.barrier(&self.members)?;
        let begin = Instant::now();
        for _ in 0..iters {
            if self.rank == 0 {
                self.fabric.send(other, TRIP, &bytes)?;
            }
            self.fabric.recv(Match::from(other, TRIP), &mut bytes)?;
            if self.rank == 1 {
                self.fabric.send(other, TRIP, &bytes)?;
            }
        }
        Ok(begin.elapsed())
    }
}
