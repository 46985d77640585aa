//! Anybody is killed at any point of what it does: a writer, a reader or a staging server, whom
//! chance says, 100 times.
//!
//! A round is a stream of its own, over the three servers that are there when it begins. In each,
//! one process is killed while its steps are written and read; another one takes its place, in the
//! same round and those after it. A second reader program is never killed, and has to see every
//! step.

use crate::faults::servers::{SERVERS, SHAPE, STEPS, serve, settings};
use crate::faults::{life_of, random, write_in_life};
use crate::staged::{Play, stage};
use samite_fabric::Mask;
use samite_stage::protocol::EndOfStream;
use samite_stage::{Stage, StepReader};
use samite_testkit::{
    Cluster, MESSAGES_ONLY, Outcome, Unit, Who, check, full_name, pause, point, same,
};
use std::time::Duration;

/// Processes that are killed.
const KILLS: u32 = 100;
/// The servers of the first round, its writer and its reader; behind them one for each that is
/// killed.
const FIRST: u32 = SERVERS + 2;
/// Sees everything; the last to be started.
const ARCHIVE: u32 = FIRST + KILLS;
/// All of them: a life of a writer is one process in one round.
const PROCESSES: u32 = ARCHIVE + 1;

/// A life hears which part it plays: "server" and its rank, or "writer" or "reader", and in which
/// round it takes the place of one that was killed, if it does.
fn part(unit: &Unit, me: u32) -> Outcome {
    let told = match me {
        ARCHIVE => "archive".to_owned(),
        _ => pause("born"),
    };
    let (name, number) = told.split_once(' ').unwrap_or((&told, ""));
    let number: Option<u32> = number.parse().ok();
    if let ("server", Some(rank)) = (name, number) {
        return serve(unit, rank);
    }
    let fabric = unit.join()?;
    let stage = stage(&fabric, settings())?;
    for round in number.unwrap_or(0)..KILLS {
        let is_second = number == Some(round);
        if !is_second {
            pause("round");
        }
        let stream = format!("field-{round}");
        match name {
            "writer" => write(&stage, &stream, u64::from(round * PROCESSES + me))?,
            "reader" => read(&stage, &stream, (round, is_second))?,
            _ => read_all(&stage, &stream, round)?,
        }
    }
    pause("done");
    Ok(())
}

/// Writes what is not committed yet, and leaves the stream open until everybody has heard of the
/// round's death.
fn write(stage: &Stage, stream: &str, life: u64) -> Outcome {
    let mut field = stage.write(stream).as_rank("solver", 0, 1).open()?;
    point("open");
    while field.next_step() < STEPS {
        write_in_life(&mut field, life, SHAPE)?;
    }
    pause("written");
    Ok(field.close()?)
}

/// Reads what the life before it, if there was one in this round, has not taken.
fn read(stage: &Stage, stream: &str, (round, is_second): (u32, bool)) -> Outcome {
    let mut reader = stage.read(stream).as_rank("analysis", 0, 1).open()?;
    point("open");
    let (mut next, mut life) = (None, 0);
    while let Some(step) = reader.next_step()? {
        match next {
            None if is_second => {}
            expected => same!(step.number(), expected.unwrap_or(0)),
        }
        next = Some(step.number() + 1);
        life = later_life(&step, round, life)?;
    }
    same!(reader.end(), Some(EndOfStream::Closed));
    check!(is_second || next == Some(STEPS), "the last was {next:?}");
    check!(next.is_none_or(|next| next == STEPS), "{next:?}");
    Ok(())
}

fn read_all(stage: &Stage, stream: &str, round: u32) -> Outcome {
    let mut all = stage.read(stream).as_rank("archive", 0, 1).open()?;
    pause("open");
    let mut life = 0;
    for number in 0..STEPS {
        let Some(step) = all.next_step()? else {
            check!(false, "no step {number} of {stream}: {:?}", all.end());
            return Ok(());
        };
        same!(step.number(), number);
        life = later_life(&step, round, life)?;
    }
    check!(all.next_step()?.is_none(), "a step too many in {stream}");
    same!(all.end(), Some(EndOfStream::Closed));
    Ok(())
}

/// Which process has written all of a step, and in which round: in this one, and none before that
/// of the step before.
fn later_life(step: &StepReader, round: u32, before: u64) -> Outcome<u64> {
    let life = life_of(step, SHAPE)?;
    check!(
        life >= before && life / u64::from(PROCESSES) == u64::from(round),
        "step {} of life {life} after one of life {before}, in round {round}",
        step.number()
    );
    Ok(life)
}

/// Who plays what now; a server by its rank.
struct Now {
    servers: [Who; SERVERS as usize],
    writer: Who,
    reader: Who,
}

impl Now {
    /// Whom chance says, of three kinds alike; `next` takes the place, and hears the part.
    fn draw(&mut self, random: &mut fastrand::Rng, round: u32, next: Who) -> (Who, String) {
        let (place, part) = match random.u8(..3) {
            0 => (&mut self.writer, format!("writer {round}")),
            1 => (&mut self.reader, format!("reader {round}")),
            _ => {
                let rank = random.usize(..self.servers.len());
                (&mut self.servers[rank], format!("server {rank}"))
            }
        };
        (std::mem::replace(place, next), part)
    }
}

fn begin(cluster: &mut Cluster, who: Who, part: &str) {
    cluster.wait_point(who, "born");
    cluster.release_as(who, part);
    if part.starts_with("server") {
        cluster.wait_point(who, "serving");
    }
}

fn go(cluster: &mut Cluster, who: Who, point: &str) {
    cluster.wait_point(who, point);
    cluster.release(who);
}

fn kill_anybody(cluster: &mut Cluster, play: &Play) {
    let mut random = random();
    let mut now = Now {
        servers: [0, 1, 2].map(|rank| play.actor(rank)),
        writer: play.actor(SERVERS),
        reader: play.actor(SERVERS + 1),
    };
    let archive = play.actor(ARCHIVE);
    for (rank, server) in now.servers.into_iter().enumerate() {
        begin(cluster, server, &format!("server {rank}"));
    }
    begin(cluster, now.writer, "writer");
    begin(cluster, now.reader, "reader");
    for round in 0..KILLS {
        go(cluster, now.writer, "round");
        go(cluster, archive, "round");
        // Both readers are there before a step is gone: each waits for the other one.
        cluster.wait_point(archive, "open");
        go(cluster, now.reader, "round");
        let all_are_open = random.u8(..4) > 0;
        if all_are_open {
            cluster.wait_point(now.writer, "open");
            cluster.wait_point(now.reader, "open");
            cluster.release(archive);
        }
        // The delay is the test: somebody dies at any point of what it does.
        std::thread::sleep(Duration::from_micros(random.u64(0..6000)));
        let next = play.actor(FIRST + round);
        let (victim, part) = now.draw(&mut random, round, next);
        cluster.kill(victim);
        cluster.wait_gone(victim);
        begin(cluster, next, &part);
        for who in [now.writer, now.reader] {
            if !all_are_open || who == next {
                cluster.wait_point(who, "open");
            }
        }
        if !all_are_open {
            cluster.release(archive);
        }
        // The stream ends when all have opened it.
        go(cluster, now.writer, "written");
    }
    for who in [now.writer, archive, now.reader] {
        go(cluster, who, "done");
    }
}

fn anybody_is_killed(name: &str, mask: Mask) {
    let play = Play::of(PROCESSES, mask);
    let units = play.units().timeout(Duration::from_secs(400));
    play.run_units(units, name, part, |cluster| kill_anybody(cluster, &play));
}

#[test]
fn anybody_is_killed_again_and_again() {
    let name = full_name(module_path!(), "anybody_is_killed_again_and_again");
    anybody_is_killed(&name, Mask::default());
}

#[test]
fn anybody_is_killed_again_and_again_by_messages() {
    let name = full_name(
        module_path!(),
        "anybody_is_killed_again_and_again_by_messages",
    );
    anybody_is_killed(&name, MESSAGES_ONLY);
}
