//! `samite bench staging`: a writer and a reader, separate programs, that exchange steps.
//!
//! Figures without a peer (the extra cost of an index, a placement, a read of a slab) are rows of
//! ours alone.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace, memcpy, size};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Steps of a window, as in the peers' `staging.h`.
const STEPS: u64 = 4;
/// Writers of the study's layouts in the rows for few servers, and readers.
const FEW: (u64, u64) = (64, 32);
/// Writers, readers and servers of its largest run.
const MANY: (u64, u64, u64) = (8192, 4096, 1024);

pub(crate) fn cases() -> Vec<Case> {
    let sizes = [MIB, 16 * MIB, 128 * MIB];
    let mut cases: Vec<Case> = sizes
        .map(|bytes| viewed_step(bytes).bar(Bar::ratio(20.0)))
        .into();
    cases.extend(sizes.map(|bytes| {
        let bar = Bar::ratio(5.0);
        let held_to_limit = bytes == 16 * MIB;
        step("copy", bytes).bar(if held_to_limit {
            bar.and_of_limit(0.9)
        } else {
            bar
        })
    }));
    cases.push(slab("get", 128 * MIB).bar(Bar::ratio(50.0)));
    cases.push(slab("copy", 128 * MIB));
    cases.push(store("", "put", 16 * MIB).bar(Bar::ratio(10.0)));
    cases.push(store("/copied", "copy", 16 * MIB));
    cases.push(memory("view", "view", 128 * MIB).bar(Bar::at_most(1.05)));
    cases.push(memory("copy", "put", 128 * MIB).bar(Bar::at_most(2.05)));
    cases.push(memory("two-copies", "copy", 128 * MIB));
    cases.push(file("write", 128 * MIB).bar(Bar::of_limit(0.9)));
    cases.push(file("write-synced", 128 * MIB));
    cases.push(file("read", 128 * MIB));
    cases.extend(figures());
    cases.extend(workflows());
    cases
}

/// Whole workflows, each run once per repeat.
fn workflows() -> Vec<Case> {
    let mut cases = vec![slowdown()];
    for servers in [2, 4, 8, 16] {
        cases.push(mismatch("", servers));
    }
    cases.push(mismatch("/messages", 4));
    for servers in [2, 4, 8, 16] {
        cases.extend(["matched", "mismatched"].map(|shape| load(shape, servers)));
    }
    // Ratios of writers to readers.
    for (writers, readers) in [(1, 1), (2, 1), (4, 2), (8, 4)] {
        cases.extend(METHODS.map(|method| end_to_end(method, writers, readers)));
    }
    for servers in [1, 2, 4, 8] {
        let words = words("server", servers, (4, 2), &square(16 * MIB));
        cases.push(step_time(&format!("servers/{servers}"), &words));
    }
    for (name, mask) in [("shared", ""), ("messages", BY_MESSAGES)] {
        let words = words("stream", 0, (2, 2), &square(16 * MIB)) + mask;
        cases.push(step_time(&format!("transport/{name}"), &words));
    }
    // Memory of one process of each program.
    for (program, method) in [
        ("synthetic-writer", "stream"),
        ("synthetic-reader", "stream"),
        ("agent", "stream"),
        ("stage-server", "server"),
    ] {
        cases.push(held(program, method));
    }
    cases
}

/// Figures that follow from a layout, or are counted: measured once, without peers.
fn figures() -> Vec<Case> {
    let mut cases = vec![slab_bytes()];
    cases.extend(index());
    for servers in [2, 4, 8, 16] {
        for shape in ["matched", "mismatched"] {
            let command = format!("layout {shape} {} {} {servers} balance", FEW.0, FEW.1);
            let name = format!("balance/{shape}/{servers}");
            cases.push(figure(&name, command, "x mean", 1.0).bar(Bar::at_most(1.10)));
        }
    }
    let (writers, readers, servers) = MANY;
    for shape in ["matched", "mismatched"] {
        let of = |what: &str, unit, factor| {
            let command = format!("layout {shape} {writers} {readers} {servers} {what}");
            figure(&format!("simulated/{shape}/{what}"), command, unit, factor)
        };
        cases.push(of("balance", "x mean", 1.0).bar(Bar::at_most(1.10)));
        cases.push(of("index", "KiB", 1.0 / 1024.0));
        cases.extend(["writer", "reader", "server"].map(|who| of(who, "peers", 1.0)));
    }
    cases
}

/// The size of a variable's index: over a domain that grows while the number of its blocks stays,
/// and over one with more and more blocks, which form a grid or do not.
fn index() -> Vec<Case> {
    const BLOCKS: u64 = 100_000;
    // A cube of this many points in each dimension for each block.
    const SPREAD: u64 = 100;
    let command = |blocks, spread, form| format!("index {blocks} {spread} {form}");
    let mut cases: Vec<Case> = [1, 8, 64, 512]
        .map(|growth| {
            let name = match growth {
                1 => "index/block".to_owned(),
                growth => format!("index/block/{growth}x"),
            };
            let command = command(BLOCKS, growth * SPREAD, "odd");
            figure(&name, command, "B", 1.0 / BLOCKS as f64).bar(Bar::at_most(96.0))
        })
        .into();
    for form in ["odd", "grid"] {
        cases.extend([1_000, 8_000, 64_000, 512_000].map(|blocks| {
            let name = format!("index/total/{form}/{blocks}");
            figure(&name, command(blocks, SPREAD, form), "KiB", 1.0 / 1024.0)
        }));
    }
    cases
}

/// All methods. The workflow has the edge that `graph` needs also with the other ones.
const METHODS: [&str; 5] = ["stream", "local", "server", "graph", "file"];
/// As if no unit shared memory with another one.
const BY_MESSAGES: &str = " --config fabric.mask=[map,kernel_copy]";
/// Writers and readers of the study's layouts in runs with real processes.
const STUDY: (u64, u64) = (8, 4);
/// Steps of a workflow; the first and the last are compared, element by element.
const WORKFLOW_STEPS: u64 = 22;

/// Returns the words after `workflow FIGURE` for the synthetic workflow. A writer puts an array of
/// its own, a reader reads boxes into its own.
fn words(method: &str, servers: u64, (writers, readers): (u64, u64), array: &str) -> String {
    let servers = match method {
        "server" => format!(" servers={servers}"),
        _ => String::new(),
    };
    format!(
        "synthetic{servers} --config stage.method={method} --writers {writers} --readers {readers} {array} \
         --steps {WORKFLOW_STEPS} --check ends --copy true"
    )
}

/// An array of this many bytes, written by rows and read by columns.
fn square(bytes: u64) -> String {
    let columns = 2048;
    format!(
        "--shape {},{columns} --pattern columns",
        bytes / 8 / columns
    )
}

/// The study's layouts, with the same bytes in both: an eighth of those of the study.
fn study(shape: &str, writers: u64) -> String {
    let (array, cut) = match shape {
        "matched" => (format!("5,{writers},64000"), "second"),
        _ => (format!("5,512,{}", 125 * writers), "columns"),
    };
    format!("--shape {array} --cut {cut} --pattern {cut}")
}

fn step_time(name: &str, words: &str) -> Case {
    let command = format!("workflow step {words}");
    let measure = Measure::new(name, command, Figure::lower("ms", 1.0));
    Case::of(measure.at_pace(Pace::Whole))
}

/// LAMMPS with output at every step, compared with no output. Each program has a processor of its
/// own.
fn slowdown() -> Case {
    let command = "workflow slowdown lammps-msd --cells 50 --steps 20 --measure true --tag-output no --set program.melt.cpus=0 \
                   --set program.analysis.cpus=1";
    let measure = Measure::new("lammps/slowdown", command, Figure::lower("%", 1.0));
    let lasts = Duration::from_secs(200);
    Case {
        needs: Some(("lammps", "ci/setup")),
        ..Case::of(measure.at_pace(Pace::Once(lasts))).bar(Bar::at_most(2.0))
    }
}

/// The time of a step in the layout that is bad for servers chosen by geometry, over that of the
/// other one.
fn mismatch(way: &str, servers: u64) -> Case {
    let mask = if way.is_empty() { "" } else { BY_MESSAGES };
    let one = |shape| {
        let words = words("server", servers, STUDY, &study(shape, STUDY.0)) + mask;
        // Long compared with their start-up time.
        words.replace("--steps 22", "--steps 110")
    };
    let (bad, good) = (one("mismatched"), one("matched"));
    let command = format!("workflow step {bad} vs {good}");
    let name = format!("mismatch/time/{servers}{way}");
    let measure = Measure::new(name, command, Figure::lower("x matched", 1.0));
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(120)))).bar(Bar::at_most(1.15))
}

/// The load of the busiest server over the mean: the largest of the ratios of bytes and requests,
/// puts and gets. The servers count them; nothing is mapped, so that they see everything.
fn load(shape: &str, servers: u64) -> Case {
    let words = words("server", servers, STUDY, &study(shape, STUDY.0));
    let command = format!("workflow load {words}{BY_MESSAGES}");
    figure(
        &format!("mismatch/balance/{shape}/{servers}"),
        command,
        "x mean",
        1.0,
    )
    .bar(Bar::at_most(1.10))
}

/// From the start of the command to its end.
fn end_to_end(method: &str, writers: u64, readers: u64) -> Case {
    let words = words(method, 2, (writers, readers), &square(32 * MIB));
    let name = format!("end-to-end/{method}/{writers}x{readers}");
    let measure = Measure::new(
        name,
        format!("workflow wall {words}"),
        Figure::lower("s", 1.0),
    );
    Case::of(measure.at_pace(Pace::Whole))
}

/// The maximum memory of one process of a program, including its own array: 64 MiB a step, by two
/// writers and two readers.
fn held(program: &str, method: &str) -> Case {
    let words = words(method, 2, (2, 2), &square(64 * MIB));
    let command = format!("workflow held:{program} {words}");
    figure(
        &format!("memory/per-process/{program}"),
        command,
        "MiB",
        1.0 / MIB as f64,
    )
}

fn figure(name: &str, command: String, unit: &'static str, factor: f64) -> Case {
    let measure = Measure::new(name, command, Figure::lower(unit, factor));
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(1))))
}

fn step(kind: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("step/{kind}/{}", size(bytes)),
        format!("step {kind} {bytes}"),
        Figure::bandwidth(STEPS * bytes),
    );
    Case::of(measure.limited_by(two_copies(bytes)))
}

/// A step that is written and read in place. Nothing is copied, so the figure is the time of a
/// step.
fn viewed_step(bytes: u64) -> Case {
    Case::of(Measure::new(
        format!("step/view/{}", size(bytes)),
        format!("step view {bytes}"),
        Figure::us(STEPS as f64),
    ))
}

/// From the writer's array into shared memory, and from there into the reader's.
fn two_copies(bytes: u64) -> Measure {
    memcpy(bytes).figured(Figure::rate("GB/s", bytes as f64 / 2e9))
}

/// Counts the bytes that the reader requests. The reader copies them out; the writer has its array
/// in the step (`get`) or puts it there (`copy`).
fn slab(kind: &str, bytes: u64) -> Case {
    let count = bytes / 8;
    let columns = (count as f64).sqrt().ceil().log2().ceil().exp2() as u64;
    let asked = count / columns * ((columns + 50) / 100) * 8;
    let more = if kind == "copy" { "/put" } else { "" };
    Case::of(Measure::new(
        format!("slab/column1%/{}{more}", size(bytes)),
        format!("slab {kind} {bytes}"),
        Figure::bandwidth(STEPS * asked),
    ))
}

/// The bytes that a server sent to a reader of one in a hundred of the columns, with nothing
/// mapped, over what this reader requested.
fn slab_bytes() -> Case {
    const EXTENT: u64 = 2048;
    let array = format!("--shape {EXTENT},{EXTENT} --pattern percent");
    let words = words("server", 1, (1, 1), &array);
    let command = format!("workflow got {words}{BY_MESSAGES}");
    let asked = WORKFLOW_STEPS * EXTENT * (EXTENT / 100) * 8;
    figure("slab/bytes", command, "x asked", 1.0 / asked as f64).bar(Bar::at_most(1.02))
}

/// A value is put from an array of the writer, and read in place, one number of each page; with
/// `/copied`, it is also copied out, as a client of Redis always does.
fn store(way: &str, kind: &str, bytes: u64) -> Case {
    Case::of(Measure::new(
        format!("store/{}{way}", size(bytes)),
        format!("store {kind} {bytes}"),
        Figure::bandwidth(bytes),
    ))
}

/// The memory of all processes over the data: in place, with the array of the writer, and also with
/// that of the reader.
fn memory(name: &str, kind: &str, bytes: u64) -> Case {
    // Two windows after one for warm-up.
    let command = format!("peak {kind} {bytes} 2 1");
    let figure = Figure::lower("x data", 1.0 / bytes as f64);
    let measure = Measure::new(format!("memory/{name}"), command, figure);
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(5))))
}

fn file(operation: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("file/{operation}/{}", size(bytes)),
        format!("file {operation} {bytes}"),
        Figure::bandwidth(bytes),
    );
    let limit = measure.clone();
    Case::of(measure.limited_by(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_in_place_is_a_time() {
        let cases = cases();
        let views: Vec<&Case> = cases
            .iter()
            .filter(|case| case.name.contains("step/view"))
            .collect();
        assert_eq!(views.len(), 3);
        for Case { measure, .. } in views {
            // Four steps in a window: a millisecond for ten windows is 25 us for a step.
            assert!((measure.figure.of(1e-3, 10) - 25.0).abs() < 1e-9);
            assert_eq!((measure.figure.unit, &measure.limit), ("us", &None));
        }
    }

    #[test]
    fn a_slab_counts_the_bytes_of_its_columns() {
        // 4096 rows of 41 of 4096 columns.
        let Case { measure, .. } = slab("get", 128 * MIB);
        let gigabytes = (STEPS * 4096 * 41 * 8) as f64 / 1e9;
        assert!((measure.figure.of(1.0, 1) - gigabytes).abs() < 1e-12);
    }
}
