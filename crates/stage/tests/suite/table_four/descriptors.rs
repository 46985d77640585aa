//! "Out of sockets": 32 processes with 64 descriptors each, all of which have streams open, write
//! and read.

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::Array2;
use rustix::process::{Resource, Rlimit, setrlimit};
use samite_fabric::{Fabric, Mask};
use samite_stage::{Method, Settings};
use samite_testkit::{MESSAGES_ONLY, Outcome, Unit, Who, check, full_name, say};
use std::fs;

/// With the coordinator they are 32.
const SERVERS: u32 = 2;
const WRITERS: u32 = 14;
const READERS: u32 = 15;
/// Each process has so many streams open.
const STREAMS: usize = 6;
const STEPS: u64 = 3;
/// Rows of each writer, and columns.
const ROWS: u64 = 4;
const COLUMNS: u64 = 60;

fn limited(_: Who) {
    let limit = Rlimit {
        current: Some(64),
        maximum: Some(64),
    };
    setrlimit(Resource::Nofile, limit).expect("a limit may be lowered");
}

/// Descriptors, and those of them that are sockets.
fn open_now() -> [usize; 2] {
    let all = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let names: Vec<_> = all
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect();
    let sockets = names
        .iter()
        .filter(|name| name.to_string_lossy().starts_with("socket:"));
    [names.len(), sockets.count()]
}

fn take_part(fabric: &Fabric, me: u32) -> Outcome {
    let stage = stage(fabric, Settings::of(Method::Server))?;
    let names: Vec<String> = (0..STREAMS)
        .map(|number| format!("field-{number}"))
        .collect();
    let shape = [u64::from(WRITERS) * ROWS, COLUMNS];
    if me < WRITERS {
        let open = |name: &String| stage.write(name).as_rank("solver", me, WRITERS).open();
        let fields = names.iter().map(open);
        let mut fields = fields.collect::<samite_stage::Result<Vec<_>>>()?;
        for number in 0..STEPS {
            for field in &mut fields {
                let mut step = field.step()?;
                let from = u64::from(me) * ROWS;
                let own = rows(number, from..from + ROWS, COLUMNS);
                step.put("u", shape, [from, 0], own.view())?;
                step.commit()?;
            }
        }
        few_descriptors(me == 0)?;
        fields.into_iter().try_for_each(|field| field.close())?;
        return Ok(());
    }
    let rank = me - WRITERS;
    let open = |name: &String| stage.read(name).as_rank("analysis", rank, READERS).open();
    let fields = names.iter().map(open);
    let mut fields = fields.collect::<samite_stage::Result<Vec<_>>>()?;
    for number in 0..STEPS {
        for field in &mut fields {
            let step = next(field)?;
            // Columns: some of every writer's rows.
            let from = u64::from(rank) * 4;
            let own: Array2<f64> = step.get("u", [0..shape[0], from..from + 4])?;
            check!(is_right(number, (0, from), own.view()), "step {number}");
        }
    }
    few_descriptors(rank == 0)
}

/// None for each peer, stream or server: what a process begins with, and its own few.
fn few_descriptors(tells: bool) -> Outcome {
    let [all, sockets] = open_now();
    if tells {
        say(&format!("{all} descriptors, {sockets} of them sockets"));
    }
    check!(
        all < 16 && sockets <= 2,
        "{all} descriptors, {sockets} of them sockets"
    );
    Ok(())
}

fn thirty_two(name: &str, mask: Mask) {
    let play = Play {
        servers: SERVERS,
        ..Play::of(WRITERS + READERS, mask)
    };
    let units = play.units().budget(1 << 30).before(limited);
    let body = |unit: &Unit, me: u32| take_part(&unit.join()?, me);
    play.run_units(units, &full_name(module_path!(), name), body, |_| ());
}

#[test]
fn thirty_two_processes_with_streams() {
    thirty_two("thirty_two_processes_with_streams", Mask::default());
}

#[test]
fn thirty_two_processes_with_streams_by_messages() {
    let name = "thirty_two_processes_with_streams_by_messages";
    thirty_two(name, MESSAGES_ONLY);
}
