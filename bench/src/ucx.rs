//! `ucx_perftest` as a contestant. It cannot wait for commands, so server and client are started
//! for every measurement.
//!
//! Its round-trip test (`tag_lat`) is compared with our latencies and bandwidths, its window test
//! (`tag_bw`) with rates and streams; the latter sends one buffer repeatedly, while the others have
//! one per message in flight. Puts, gets and atomics of a word are those of UCP: `ucp_put_lat`, of
//! which two are the round trip after which a put is known to be at its target, `ucp_get` and
//! `ucp_fadd`, one at a time.
//!
//! It allocates its own buffers; `UCX_ALLOC_PRIO` selects the kind that matches ours. It never
//! writes its send buffer, which would therefore be the kernel's single page of zeros, always in
//! the cache: with `MALLOC_PERTURB_`, malloc writes it. Huge pages are not possible in this way, so
//! that case is left to the others.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::contestant::Answer;
use crate::network;

pub(crate) const NAME: &str = "ucx";
/// The bench on one machine in which it takes part; it is also in `network`.
pub(crate) const BENCH: &str = "message";
pub(crate) const PROGRAM: &str = "ucx_perftest";
/// From util-linux; lets the kernel end a process together with this one.
pub(crate) const GUARD: &str = "setpriv";

/// Returns its settings, as they are shown.
pub(crate) fn settings(networks: &Networks) -> String {
    let device = networks
        .device
        .map(|device| format!(" UCX_NET_DEVICES={device}"));
    format!(
        "UCX_TLS={}{} MALLOC_PERTURB_=165; tag_lat for latency and bandwidth, tag_bw for rate and stream, ucp_put_lat, ucp_get, ucp_fadd",
        networks.transports,
        device.unwrap_or_default()
    )
}

/// What it uses of UCX.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Networks {
    transports: &'static str,
    device: Option<&'static str>,
}

impl Networks {
    /// Returns what it uses in a bench.
    pub(crate) fn of(bench: &str) -> Networks {
        match bench {
            network::BENCH => Networks {
                transports: network::TRANSPORTS,
                device: Some(network::DEVICE),
            },
            _ => Networks {
                transports: "sm,self",
                device: None,
            },
        }
    }
}

const CONNECT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(10);

/// Where the two processes run.
#[derive(Debug)]
pub(crate) struct Ucx {
    cpus: Vec<usize>,
    networks: Networks,
}

/// The arguments of `ucx_perftest` for a measure.
#[derive(Debug, PartialEq)]
struct Test {
    name: &'static str,
    bytes: u64,
    messages: u64,
    /// How many of the printed latencies are a round of ours.
    ways: f64,
    window: Option<u64>,
    allocate: &'static str,
}

impl Ucx {
    pub(crate) fn on(cpus: &[usize], networks: Networks) -> Self {
        Ucx {
            cpus: cpus.to_vec(),
            networks,
        }
    }

    /// Runs a command of the fifo protocol; the answer has its meaning.
    pub(crate) fn ask(&self, line: &str, timeout: Duration) -> Result<Answer> {
        let Some((test, iters)) = test(line) else {
            return Ok(Answer::Unsupported);
        };
        let line = self.run(&test, timeout)?;
        let figure = Printed::parse(&line)
            .with_context(|| format!("{PROGRAM} printed `{line}` for {}", test.name))?;
        Ok(Answer::Value(match test.window {
            None => figure.latency_us * 1e-6 * test.ways * iters as f64,
            Some(_) => test.messages as f64 / figure.messages_per_second,
        }))
    }

    fn run(&self, test: &Test, timeout: Duration) -> Result<String> {
        let port = free_port()?;
        let server = Started::new(self.command(0, port, test))?;
        let end = Instant::now() + CONNECT;
        // The server does not report when it listens, and the client does not retry.
        loop {
            let mut command = self.command(1, port, test);
            command.arg("127.0.0.1");
            let output = Started::new(command)?.finish(timeout)?;
            if output.status.success() {
                server.finish(timeout)?;
                return last_line(&output.stdout);
            }
            if Instant::now() > end {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                bail!(
                    "{PROGRAM} {} ended with {}: {said}",
                    test.name,
                    output.status
                );
            }
            thread::sleep(RETRY);
        }
    }

    fn command(&self, rank: usize, port: u16, test: &Test) -> Command {
        // A server without its client would wait forever if this process were killed.
        let mut command = Command::new(GUARD);
        command
            .args(["--pdeathsig", "KILL", PROGRAM])
            .env("UCX_TLS", self.networks.transports)
            .envs(
                self.networks
                    .device
                    .map(|device| ("UCX_NET_DEVICES", device)),
            )
            .env("UCX_ALLOC_PRIO", test.allocate)
            .env("MALLOC_PERTURB_", "165")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .args(["-f", "-v", "-t", test.name])
            .args(["-p", &port.to_string(), "-s", &test.bytes.to_string()])
            .args([
                "-n",
                &test.messages.to_string(),
                "-w",
                &(test.messages / 8 + 1).to_string(),
            ]);
        if let Some(window) = test.window {
            command.args(["-O", &window.to_string()]);
        }
        if !self.cpus.is_empty() {
            command.args(["-c", &self.cpus[rank % self.cpus.len()].to_string()]);
        }
        command
    }
}

/// A process in its own group that does not outlive this value.
struct Started(Option<Child>);

impl Started {
    fn new(mut command: Command) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {PROGRAM}"))?;
        Ok(Started(Some(child)))
    }

    /// Returns its output, which fits into a pipe, so the process cannot block.
    fn finish(mut self, timeout: Duration) -> Result<std::process::Output> {
        let end = Instant::now() + timeout;
        while let Some(child) = &mut self.0 {
            if child.try_wait()?.is_some() {
                break;
            }
            if Instant::now() > end {
                bail!("{PROGRAM} gave no answer within {timeout:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        let child = self
            .0
            .take()
            .context("the process was already waited for")?;
        Ok(child.wait_with_output()?)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended already, which is fine.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

/// Returns the test for a command, and the command's iterations.
fn test(line: &str) -> Option<(Test, u64)> {
    const OWN: &str = "md:sysv,md:posix,huge,thp,md:*,mmap,heap"; // UCX's default
    let words: Vec<&str> = line.split(' ').collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let one_by_one = |(name, ways), bytes, iters, allocate| {
        let test = Test {
            name,
            bytes,
            messages: iters,
            ways,
            window: None,
            allocate,
        };
        Some((test, iters))
    };
    let round_trip = |bytes, iters, allocate| one_by_one(("tag_lat", 2.0), bytes, iters, allocate);
    match words[..] {
        ["latency", ..] => round_trip(number(1)?, number(2)?, "heap"),
        ["bandwidth", "malloc", ..] => round_trip(number(2)?, number(3)?, "heap"),
        ["bandwidth", "segment", ..] => round_trip(number(2)?, number(3)?, OWN),
        ["put", "8", ..] => one_by_one(("ucp_put_lat", 2.0), 8, number(2)?, OWN),
        ["get", "8", ..] => one_by_one(("ucp_get", 1.0), 8, number(2)?, OWN),
        ["atomic", "single", ..] => one_by_one(("ucp_fadd", 1.0), 8, number(2)?, OWN),
        ["rate" | "stream", ..] => {
            let (bytes, window, iters) = (number(1)?, number(2)?, number(3)?);
            let test = Test {
                name: "tag_bw",
                bytes,
                messages: iters * window,
                ways: 1.0,
                window: Some(window),
                allocate: "heap",
            };
            Some((test, iters))
        }
        _ => None,
    }
}

/// The columns of `-f -v`: iterations, percentile, average and overall latency, average and overall
/// bandwidth, average and overall message rate.
#[derive(Debug, PartialEq)]
struct Printed {
    latency_us: f64,
    messages_per_second: f64,
}

impl Printed {
    fn parse(line: &str) -> Option<Self> {
        let columns: Vec<f64> = line
            .split(',')
            .map(|text| text.trim().parse().ok())
            .collect::<Option<_>>()?;
        Some(Printed {
            latency_us: *columns.get(3)?,
            messages_per_second: *columns.get(7)?,
        })
    }
}

fn last_line(stdout: &[u8]) -> Result<String> {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(line
        .with_context(|| format!("{PROGRAM} printed nothing"))?
        .to_owned())
}

/// Returns a port that was free; if another process takes it, the run fails with an error.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_become_tests() {
        let (latency, iters) = test("latency 8 1000 126").unwrap();
        assert_eq!((latency.name, latency.bytes, iters), ("tag_lat", 8, 1000));
        let (put, iters) = test("put 8 1000 126").unwrap();
        assert_eq!((put.name, put.ways, iters), ("ucp_put_lat", 2.0, 1000));
        let (atomic, iters) = test("atomic single 1000 126").unwrap();
        assert_eq!((atomic.name, atomic.ways, iters), ("ucp_fadd", 1.0, 1000));
        let (rate, iters) = test("rate 8 64 10 2").unwrap();
        assert_eq!((rate.name, rate.messages, iters), ("tag_bw", 640, 10));
        assert_eq!(test("bandwidth cold 1024 10 2"), None);
        assert_eq!(test("barrier 10 2"), None);
    }

    #[test]
    fn the_final_line_is_read() {
        let line = "10000,3.776,3.812,3.813,16395.99,16396.00,262336,262337";
        let printed = Printed::parse(line).unwrap();
        assert_eq!(
            printed,
            Printed {
                latency_us: 3.813,
                messages_per_second: 262_337.0
            }
        );
        assert_eq!(
            Printed::parse("iterations,50.0_percentile_lat,avg_lat"),
            None
        );
    }
}
