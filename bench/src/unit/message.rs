//! Messages.
//!
//! The buffers are like those of the peers: page-aligned private pages, written before the clock
//! starts, separate for sending and receiving. `segment` buffers are in shared memory; the receiver
//! gets a view of the message in place, as a program with its data in segments does. Nothing is
//! copied, and while the clock runs, nobody reads the bytes: the figure is that of the exchange.

use super::{Unit, check, fill};
use crate::control::Command;
use anyhow::{Context, Result, ensure};
use samite::{Match, Pages, PeerId, SharedBytes};
use std::time::{Duration, Instant};

const TAG: u64 = 7;
const ACK: u64 = 8;
const DECISION: u64 = 9;

impl Unit {
    pub(super) fn message(&self, command: &Command) -> Result<Option<f64>> {
        let number = |index| command.number(index);
        match (command.name(), self.members.len()) {
            ("latency", 2) => self
                .ping_pong(number(1)?, number(2)?, number(3)?, false)
                .map(Some),
            ("bandwidth", 2) => {
                let (bytes, iters, warmup) = (number(2)?, number(3)?, number(4)?);
                match command.word(1) {
                    "malloc" => self.ping_pong(bytes, iters, warmup, false).map(Some),
                    "hugepages" => self.ping_pong(bytes, iters, warmup, true).map(Some),
                    "segment" => self.segments(bytes, iters, warmup).map(Some),
                    "segment-copy" => self.segment_copies(bytes, iters, warmup).map(Some),
                    "cold" => self.cold(bytes, iters, warmup).map(Some),
                    _ => Ok(None),
                }
            }
            ("rate" | "stream", 2) => self
                .windows(number(1)?, number(2)? as usize, number(3)?, number(4)?)
                .map(Some),
            ("alltoall", _) => self
                .alltoall(number(1)? as usize, number(2)?, number(3)?)
                .map(Some),
            ("barrier", _) => self.barriers(number(1)?, number(2)?).map(Some),
            ("idle", 2) => self.idle(command.seconds(1)?).map(Some),
            ("memory", 2) => self.memory().map(Some),
            _ => Ok(None),
        }
    }

    fn other(&self) -> PeerId {
        self.members[1 - self.rank]
    }

    fn barrier(&self) -> Result<()> {
        self.fabric.barrier(&self.members).context("barrier")
    }

    /// One round trip; rank 0 begins.
    #[inline(always)]
    fn round(&self, out: &[u8], into: &mut [u8]) -> Result<()> {
        let (fabric, other) = (&self.fabric, self.other());
        if self.rank == 0 {
            fabric.send(other, TAG, out)?;
            fabric.recv(Match::from(other, TAG), into)?;
        } else {
            fabric.recv(Match::from(other, TAG), into)?;
            fabric.send(other, TAG, out)?;
        }
        Ok(())
    }

    fn ping_pong(&self, bytes: u64, iters: u64, warmup: u64, huge: bool) -> Result<f64> {
        let (mut out, mut into) = (Pages::new(bytes, huge)?, Pages::new(bytes, huge)?);
        out.fill(1);
        into.fill(2);
        for _ in 0..warmup {
            self.round(&out, &mut into)?;
        }
        self.barrier()?;
        let start = Instant::now();
        for _ in 0..iters {
            self.round(&out, &mut into)?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        fill(&mut out, self.rank);
        into.fill(0);
        self.round(&out, &mut into)?;
        check(&into, 1 - self.rank)?;
        Ok(elapsed)
    }

    /// New buffers every round, the receiver's untouched; only the exchange is measured.
    fn cold(&self, bytes: u64, iters: u64, warmup: u64) -> Result<f64> {
        let mut elapsed = Duration::ZERO;
        for round in 0..warmup + iters + 1 {
            let (mut out, mut into) = (Pages::new(bytes, false)?, Pages::new(bytes, false)?);
            let last = round == warmup + iters;
            if last {
                fill(&mut out, self.rank)
            } else {
                out.fill(1)
            }
            self.barrier()?;
            let start = Instant::now();
            self.round(&out, &mut into)?;
            if round >= warmup && !last {
                elapsed += start.elapsed();
            }
            if last {
                check(&into, 1 - self.rank)?;
            }
        }
        Ok(elapsed.as_secs_f64())
    }

    /// Messages in segments, of which the receiver gets a view and does not read it.
    fn segments(&self, bytes: u64, iters: u64, warmup: u64) -> Result<f64> {
        let segment = self.fabric.allocate(bytes)?;
        let mut pattern = vec![0; bytes as usize];
        fill(&mut pattern, self.rank);
        segment.bytes().write(0, &pattern);
        let mut start = Instant::now();
        for round in 0..warmup + iters {
            if round == warmup {
                self.barrier()?;
                start = Instant::now();
            }
            self.view_round(segment.bytes(), false)?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        self.view_round(segment.bytes(), true)?;
        Ok(elapsed)
    }

    fn view_round(&self, out: &SharedBytes, checked: bool) -> Result<()> {
        let send = || self.fabric.isend_shared(self.other(), TAG, out.clone());
        let receive = || -> Result<()> {
            let view = self.fabric.recv_view(Match::from(self.other(), TAG))?;
            if checked {
                ensure!(view.in_place(), "the message was copied");
                let mut bytes = vec![0; view.bytes().len() as usize];
                view.bytes().read(0, &mut bytes);
                check(&bytes, 1 - self.rank)?;
            }
            Ok(())
        };
        if self.rank == 0 {
            let sent = send()?;
            receive()?;
            sent.wait()?;
        } else {
            receive()?;
            send()?.wait()?;
        }
        Ok(())
    }

    /// Messages in segments that are copied once, into private memory.
    fn segment_copies(&self, bytes: u64, iters: u64, warmup: u64) -> Result<f64> {
        let segment = self.fabric.allocate(bytes)?;
        let mut pattern = vec![0; bytes as usize];
        fill(&mut pattern, self.rank);
        segment.bytes().write(0, &pattern);
        let mut into = Pages::new(bytes, false)?;
        into.fill(2);
        let mut start = Instant::now();
        for round in 0..warmup + iters {
            if round == warmup {
                self.barrier()?;
                start = Instant::now();
            }
            self.copy_round(segment.bytes(), &mut into)?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        into.fill(0);
        self.copy_round(segment.bytes(), &mut into)?;
        check(&into, 1 - self.rank)?;
        Ok(elapsed)
    }

    fn copy_round(&self, out: &SharedBytes, into: &mut [u8]) -> Result<()> {
        let wants = Match::from(self.other(), TAG);
        if self.rank == 0 {
            let sent = self.fabric.isend_shared(self.other(), TAG, out.clone())?;
            self.fabric.recv(wants, into)?;
            sent.wait()?;
        } else {
            self.fabric.recv(wants, into)?;
            self.fabric
                .isend_shared(self.other(), TAG, out.clone())?
                .wait()?;
        }
        Ok(())
    }

    /// One direction, `window` messages in flight, followed by a small answer.
    fn windows(&self, bytes: u64, window: usize, iters: u64, warmup: u64) -> Result<f64> {
        let size = bytes * window as u64;
        let mut buffer = Pages::new(size, false)?;
        fill(&mut buffer, self.rank);
        let mut start = Instant::now();
        for round in 0..warmup + iters {
            if round == warmup {
                self.barrier()?;
                start = Instant::now();
            }
            self.window(&mut buffer, bytes as usize)?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        if self.rank == 1 {
            buffer.fill(0);
        }
        self.window(&mut buffer, bytes as usize)?;
        if self.rank == 1 {
            check(&buffer, 0)?;
        }
        Ok(elapsed)
    }

    fn window(&self, buffer: &mut [u8], bytes: usize) -> Result<()> {
        let (fabric, other) = (&self.fabric, self.other());
        let mut ack = [0; 4];
        if self.rank == 0 {
            fabric.scope(|scope| -> samite::Result<()> {
                for part in buffer.chunks(bytes) {
                    scope.isend(other, TAG, part)?;
                }
                Ok(())
            })?;
            fabric.recv(Match::from(other, ACK), &mut ack)?;
        } else {
            fabric.scope(|scope| -> samite::Result<()> {
                for part in buffer.chunks_mut(bytes) {
                    scope.irecv(Match::from(other, TAG), part)?;
                }
                Ok(())
            })?;
            fabric.send(other, ACK, &ack)?;
        }
        Ok(())
    }

    /// Every rank sends a part to every other one.
    fn alltoall(&self, bytes: usize, iters: u64, warmup: u64) -> Result<f64> {
        let ranks = self.members.len();
        let mut out = vec![0; bytes * ranks];
        for (to, part) in out.chunks_mut(bytes).enumerate() {
            fill(part, self.rank * ranks + to);
        }
        let mut into = vec![0; bytes * ranks];
        let mut start = Instant::now();
        for round in 0..warmup + iters {
            if round == warmup {
                self.barrier()?;
                start = Instant::now();
            }
            self.exchange(&out, &mut into, bytes)?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        into.fill(0);
        self.exchange(&out, &mut into, bytes)?;
        for (from, part) in into.chunks(bytes).enumerate() {
            check(part, from * ranks + self.rank)?;
        }
        Ok(elapsed)
    }

    /// As in MPI libraries: a rank copies its own part itself.
    fn exchange(&self, out: &[u8], into: &mut [u8], bytes: usize) -> Result<()> {
        let (fabric, members) = (&self.fabric, &self.members);
        let part = |of: usize| of * bytes..(of + 1) * bytes;
        fabric.scope(|scope| -> samite::Result<()> {
            for (from, buffer) in into.chunks_mut(bytes).enumerate() {
                if from == self.rank {
                    buffer.copy_from_slice(&out[part(from)]);
                } else {
                    scope.irecv(Match::from(members[from], TAG), buffer)?;
                }
            }
            for step in 1..members.len() {
                let to = (self.rank + step) % members.len();
                scope.isend(members[to], TAG, &out[part(to)])?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn barriers(&self, iters: u64, warmup: u64) -> Result<f64> {
        let mut start = Instant::now();
        for round in 0..warmup + iters {
            if round == warmup {
                start = Instant::now();
            }
            self.barrier()?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Processor seconds that rank 1 spends in a receive which rank 0 answers late.
    fn idle(&self, seconds: f64) -> Result<f64> {
        self.barrier()?;
        let (fabric, other) = (&self.fabric, self.other());
        let mut word = [0; 8];
        if self.rank == 0 {
            std::thread::sleep(Duration::from_secs_f64(seconds));
            fabric.send(other, TAG, &[0])?;
            fabric.recv(Match::from(other, DECISION), &mut word)?;
        } else {
            let before = cpu_seconds();
            fabric.recv(Match::from(other, TAG), &mut word[..1])?;
            word = (cpu_seconds() - before).to_le_bytes();
            fabric.send(other, DECISION, &word)?;
        }
        Ok(f64::from_le_bytes(word))
    }

    /// Shared memory of this pair: the blocks of both ends after small and large messages.
    fn memory(&self) -> Result<f64> {
        let (mut small, mut large) = ([0; 8], vec![0; 4096]);
        self.round(&[1; 8], &mut small)?;
        self.round(&vec![1; 4096], &mut large)?;
        let mine = self.fabric.shared_bytes();
        let mut theirs = [0; 8];
        self.round(&mine.to_le_bytes(), &mut theirs)?;
        Ok((mine + u64::from_le_bytes(theirs)) as f64)
    }
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
