//! What happens after `kill -9` of a process that holds a write guard: another one that waits gets
//! its guard. Rank 0 starts the holder and kills it, rank 1 waits.

use super::Unit;
use super::staging::workflow::TOLD;
use crate::control::Command;
use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use samite::Match;
use samite::dsm::{Dsm, Version};
use samite::variable::DOMAIN;
use std::io::{BufRead, BufReader, Write};
use std::process::{self, Child, ExitStatus, Stdio};
use std::time::Duration;

/// The chunk of the guards.
const CHUNK: &str = "held";
const BYTES: u64 = 1 << 20;
/// What the holder says when it has its guard, and whether it maps the memory of the home.
const HELD: [&str; 2] = ["held by messages", "held in place"];
/// The tag of messages between the ranks.
const TURN: u64 = 15;
/// The request of rank 1 arrives in this time.
const ASKS: Duration = Duration::from_millis(20);

/// Holds a guard until it is killed: the program `bench-holder`.
pub fn run_holder() -> Result<()> {
    let fabric = samite::init()?;
    let dsm = Dsm::join(&fabric)?;
    let probe = dsm.alloc::<u8>(&format!("probe of {}", std::process::id()), BYTES)?;
    probe.put(&vec![1; BYTES as usize], 0)?;
    let in_place = probe.snapshot()?.in_place();
    probe.free()?;
    let mut guard = dsm.alloc::<u8>(CHUNK, BYTES)?.write()?;
    guard.fill(1);
    println!("{}", HELD[usize::from(in_place)]);
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

impl Unit {
    /// Runs `recovery PLACE ITERS WARMUP`: the most seconds from a kill to the guard of the other
    /// process, among ITERS of them, times ITERS. PLACE is `node`, or `nodes`: the holder is as if
    /// it were on another node.
    pub(super) fn recovery(&self, command: &Command) -> Result<Option<f64>> {
        let nodes = match command.word(1) {
            "node" => 1,
            "nodes" => 2,
            _ => return Ok(None),
        };
        let (iters, warmup) = (command.number(2)?, command.number(3)?);
        let chunk = Dsm::join(&self.fabric)?.alloc::<u8>(CHUNK, BYTES)?;
        let mut most: f64 = 0.0;
        for round in 0..iters + warmup {
            let other = self.members[1 - self.rank];
            let mut begun = [0; 8];
            if self.rank == 1 {
                self.fabric.recv(Match::from(other, TURN), &mut [])?;
                self.fabric.send(other, TURN, &[])?;
                let guard = chunk.write()?;
                let now = now();
                self.fabric.send(other, TURN, &now.to_le_bytes())?;
                // What the holder has written was not committed.
                drop(guard);
                ensure!(
                    chunk.snapshot()?.version() == Version::default(),
                    "a version of a process that was killed"
                );
                continue;
            }
            let mut holder = Holder::start(nodes)?;
            self.fabric.send(other, TURN, &[])?;
            self.fabric.recv(Match::from(other, TURN), &mut [])?;
            std::thread::sleep(ASKS);
            let killed = now();
            holder.0.kill()?;
            self.fabric.recv(Match::from(other, TURN), &mut begun)?;
            holder.end()?;
            let took = f64::from_le_bytes(begun) - killed;
            ensure!(
                took > 0.0,
                "another process had the guard before its holder was killed"
            );
            if round >= warmup {
                most = most.max(took);
            }
        }
        Ok(Some(most * iters as f64))
    }
}

/// Returns the seconds of the clock that all processes have.
fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// A process that has a guard. Its drop ends it.
struct Holder(Child);

impl Holder {
    /// Returns when it has the guard.
    fn start(nodes: u32) -> Result<Holder> {
        let mut command = process::Command::new(std::env::current_exe()?);
        command.arg("bench-holder");
        for name in TOLD.iter().filter(|name| **name != DOMAIN) {
            command.env_remove(name);
        }
        // The second unit of a job is on the second of the nodes.
        command
            .env("SAMITE_UNIT", "1")
            .env("SAMITE_UNITS", "2")
            .env("SAMITE_FABRIC_NODES", nodes.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut holder = Holder(command.spawn()?);
        let mut said = String::new();
        let out = holder.0.stdout.take().context("the holder has no output")?;
        BufReader::new(out).read_line(&mut said)?;
        if said.trim() != HELD[usize::from(nodes == 1)] {
            let status = holder.end()?;
            anyhow::bail!("the holder of a guard ended with {status}: {said}");
        }
        Ok(holder)
    }

    /// Ends it, if it has not ended.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Fails only if it has been waited for.
        _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, test_kill_process};

    #[test]
    fn a_holder_is_not_left_behind() {
        let holder = Holder(
            process::Command::new("cat")
                .stdin(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let pid = Pid::from_child(&holder.0);
        assert!(test_kill_process(pid).is_ok());
        drop(holder);
        assert!(test_kill_process(pid).is_err());
    }
}
