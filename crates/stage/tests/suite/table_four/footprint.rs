//! "Out of main memory", where nothing is mapped: what a block takes beside its bytes, at the block
//! store, its writer and its readers together. Beside the arrays that users have themselves there
//! is the block once, and a twentieth of it.

use crate::staged::{Play, next, stage};
use ndarray::{Array1, ArrayView1};
use samite_fabric::Fabric;
use samite_stage::{Region, Settings};
use samite_testkit::{Cluster, MESSAGES_ONLY, Outcome, Unit, Who, check, full_name, pause};
use std::fs;
use std::time::Duration;

/// What of a block, of words, its readers copy at a time.
#[derive(Clone, Copy)]
struct Sizes {
    words: u64,
    read: u64,
    readers: u32,
}

impl Sizes {
    /// Bytes of the arrays of the writer and the readers.
    fn of_users(self) -> u64 {
        (self.words + self.read * u64::from(self.readers)) * 8
    }
}

fn word(place: u64) -> u64 {
    place.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn take_part(fabric: &Fabric, me: u32, sizes: Sizes) -> Outcome {
    let stage = stage(fabric, Settings::default())?;
    if me == 0 {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        pause("empty");
        let own: Vec<u64> = (0..sizes.words).map(word).collect();
        let mut step = field.step()?;
        step.put("u", [sizes.words], [0_u64], ArrayView1::from(&own))?;
        step.commit()?;
        pause("written");
        return Ok(field.close()?);
    }
    let (rank, readers) = (me - 1, sizes.readers);
    let reader = stage.read("field");
    let mut reader = reader.as_rank(&format!("analysis-{rank}"), 0, 1).open()?;
    pause("empty");
    let step = next(&mut reader)?;
    // The readers begin at different places.
    let parts = sizes.words.div_ceil(sizes.read);
    let mut own = Array1::<u64>::zeros(sizes.read as usize);
    for part in 0..parts {
        let part = (part + parts * u64::from(rank) / u64::from(readers)) % parts;
        let first = part * sizes.read;
        let count = sizes.read.min(sizes.words - first);
        let into = &mut own.as_slice_mut().expect("it lies together")[..count as usize];
        step.read_into("u", Region::at(&[first], &[count])?, into)?;
        let wrong = (first..)
            .zip(&*into)
            .find(|(place, found)| **found != word(*place));
        check!(wrong.is_none(), "{wrong:?}");
    }
    pause("read");
    Ok(())
}

/// Bytes in a line of what the system says of a process.
fn status(pid: i32, which: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(which));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("Linux says so") << 10
}

/// The most that each process had at any time since all were empty, over what it had then: no page
/// of the block is counted twice, since nobody but its block store maps it.
fn grown(cluster: &mut Cluster, everybody: &[Who], actors: &[Who]) -> Vec<u64> {
    for &who in actors {
        cluster.wait_point(who, "empty");
    }
    let pids: Vec<i32> = everybody.iter().map(|who| cluster.pid(*who)).collect();
    let before = pids.iter().map(|&pid| {
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the peak can be forgotten");
        status(pid, "VmRSS:")
    });
    let before: Vec<u64> = before.collect();
    for (rank, &who) in actors.iter().enumerate() {
        cluster.release(who);
        if rank == 0 {
            cluster.wait_point(who, "written");
        }
    }
    for &who in &actors[1..] {
        cluster.wait_point(who, "read");
    }
    let peaks = pids.iter().map(|&pid| status(pid, "VmHWM:"));
    let grown = peaks
        .zip(before)
        .map(|(peak, before)| peak.saturating_sub(before));
    let grown = grown.collect();
    actors.iter().for_each(|&who| cluster.release(who));
    grown
}

fn by_messages(name: &str, sizes: Sizes, budget: u64) {
    let play = Play {
        memory: budget,
        ..Play::of(1 + sizes.readers, MESSAGES_ONLY)
    };
    let block = sizes.words * 8;
    let actors: Vec<Who> = (0..=sizes.readers).map(|actor| play.actor(actor)).collect();
    let everybody = [&[Who::Agent, Who::Unit(0)], &actors[..]].concat();
    let body = |unit: &Unit, me: u32| take_part(&unit.join()?, me, sizes);
    let units = play.units().budget(budget);
    let units = units.timeout(Duration::from_secs(400));
    play.run_units(units, name, body, |cluster| {
        let grown = grown(cluster, &everybody, &actors);
        let all: u64 = grown.iter().sum();
        let most = sizes.of_users() + block + block / 20;
        let mebibytes: Vec<u64> = grown.iter().map(|bytes| bytes >> 20).collect();
        println!(
            "{name}: {mebibytes:?} MiB of {everybody:?}, {:.3} x the block beside the arrays of users",
            (all as f64 - sizes.of_users() as f64) / block as f64
        );
        assert!(all <= most, "{all} bytes, and not {most}: {mebibytes:?} MiB of {everybody:?}");
        assert!(all >= block + sizes.words * 8, "{all} bytes cannot be all of them");
    });
}

#[test]
fn a_block_by_messages_takes_its_bytes_and_little_more() {
    let name = "a_block_by_messages_takes_its_bytes_and_little_more";
    let sizes = Sizes {
        words: 32 << 20,
        read: 32 << 20,
        readers: 2,
    };
    by_messages(&full_name(module_path!(), name), sizes, 512 << 20);
}

/// More bytes than 32 bits count; by hand:
/// `cargo test --release -p samite-stage --test table_four -- --ignored by_messages`.
#[test]
#[ignore = "needs 10 GiB of memory"]
fn a_block_above_two_to_the_32_bytes_by_messages() {
    let name = "a_block_above_two_to_the_32_bytes_by_messages";
    let sizes = Sizes {
        words: (1 << 29) + 512,
        read: 8 << 20,
        readers: 1,
    };
    by_messages(&full_name(module_path!(), name), sizes, 6 << 30);
}
