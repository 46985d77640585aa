//! The example programs, each run by the `samite` command, with the output that it must have.
//!
//! This test binary contains all examples. `Programs` is a folder with a script of each example's
//! name, which starts this binary again; it then is that example.

mod mistakes;
pub(crate) mod programs;
mod readme;
pub(crate) mod tutorial;

use programs::Programs;

#[test]
fn units_start_print_and_leave() {
    let programs = Programs::new();
    for _ in 0..10 {
        let lines = programs.run("-n 3 target/debug/hello");
        for unit in 0..3 {
            lines.has(&format!("[hello.{unit}] unit {unit} of 3"));
        }
    }
}

/// Each unit leaves as soon as it has its number, and what it has sent arrives nevertheless.
#[test]
fn messages_need_no_barrier_at_the_end() {
    let programs = Programs::new();
    for _ in 0..10 {
        let lines = programs.run("-n 4 target/debug/ring");
        for (unit, sum) in ["0 + 30 = 30", "10 + 0 = 10", "20 + 10 = 30", "30 + 20 = 50"]
            .iter()
            .enumerate()
        {
            lines.has(&format!("[ring.{unit}] unit {unit}: {sum}"));
        }
    }
    programs
        .run("-n 1 target/debug/ring")
        .has("[ring.0] unit 0: 0 + 0 = 0");
}

/// The rows are longer than what is sent before it is received, so units that waited for one
/// transfer after the other would wait for each other.
#[test]
fn a_scope_borrows_buffers() {
    let programs = Programs::new();
    for options in [
        "",
        "--config fabric.mask=[map,kernel_copy]",
        "--config fabric.nodes=3",
    ] {
        let lines = programs.run(&format!("{options} -n 3 target/debug/scope"));
        for (unit, pair) in ["2 and 1", "0 and 2", "1 and 0"].iter().enumerate() {
            lines.has(&format!("[scope.{unit}] unit {unit} is between {pair}"));
        }
    }
}

#[test]
fn one_unit_writes_into_the_memory_of_another() {
    let programs = Programs::new();
    programs
        .run("-n 2 target/debug/woven")
        .has("[woven.0] woven");
}

/// The glider has moved by eleven cells, over both edges of the board, whoever has which cells.
#[test]
fn ghost_cells_with_corners() {
    let programs = Programs::new();
    for units in [1, 2, 4, 9] {
        let lines = programs.run(&format!("-n {units} target/debug/life"));
        let said = lines.of("life.0");
        assert_eq!(said[0], "5 cells live after 44 generations");
        // Where the glider began, one cell up and to the left.
        let mut board = vec![vec!['.'; 12]; 12];
        for [y, x] in [[11, 0], [0, 1], [1, 11], [1, 0], [1, 1]] {
            board[y][x] = '#';
        }
        let board: Vec<String> = board.into_iter().map(String::from_iter).collect();
        assert_eq!(said[1..], board, "{units} units");
    }
}

#[test]
fn a_distributed_map() {
    let programs = Programs::new();
    for units in [1, 3, 5] {
        let lines = programs.run(&format!("-n {units} target/debug/codons"));
        lines.has(&format!(
            "[codons.0] {units} units found 11 different triplets"
        ));
        for count in ["ATG: 3", "GCC: 3", "TTT: 0"] {
            lines.has(&format!("[codons.0] {count}"));
        }
        let stored = (0..units).map(|unit| {
            let said = lines.of(&format!("codons.{unit}"));
            let count = said.iter().find_map(|line| {
                let rest = line.strip_prefix(&format!("unit {unit} stores the counts of "))?;
                rest.strip_suffix(" triplets")?.parse::<u64>().ok()
            });
            count.expect("it says what it stores")
        });
        assert_eq!(stored.sum::<u64>(), 17, "each triplet is counted once");
    }
}

#[test]
fn a_distributed_sort() {
    let programs = Programs::new();
    let lines = programs.run("-n 3 target/debug/sort");
    lines.has("[sort.0] unit 0 has energies from 0.0000 to 0.3333");
    lines.has("[sort.1] unit 1 has energies from 0.3334 to 0.6666");
    lines.has("[sort.2] unit 2 has energies from 0.6667 to 0.9999");
    // Energy i has the particle number i / 7919, modulo the prime number of particles.
    let inverse = (1..10_007).find(|number| number * 7919 % 10_007 == 1);
    let inverse = inverse.expect("it is a prime number");
    let middle = [5002, 5003, 5004].map(|energy| energy * inverse % 10_007);
    lines.has(&format!(
        "[sort.0] in the middle of the list: particles {middle:?}"
    ));
}

#[test]
fn a_subscription() {
    let programs = Programs::new();
    let lines = programs.run("-n 2 target/debug/watch");
    let said = lines.of("watch.1");
    let rows = [3, 4, 5].map(|row| format!("step {row}: [{row}..{}, 20..40]", row + 1));
    assert_eq!(said[..3], rows);
    assert_eq!(said[3..], ["the stream was closed"]);
}

/// The reader waits twice as long as the deadline for each step.
#[test]
fn a_writer_that_computes_for_longer_than_the_deadline() {
    let programs = Programs::new();
    let lines = programs.run("-n 2 --config fabric.deadline=1s target/debug/slow_writer");
    assert_eq!(
        lines.of("slow_writer.1"),
        ["step 0: 0", "step 1: 1", "step 2: 4"]
    );
}

/// One unit alone, which sends to itself, and several: that share memory, and that do not.
#[test]
fn threads_share_a_fabric() {
    let programs = Programs::new();
    let own = 3999 * 4000 / 2;
    for (units, nodes) in [(1, 1), (3, 1), (3, 3)] {
        let command = format!("--config fabric.nodes={nodes} -n {units} target/debug/threads");
        let lines = programs.run(&command);
        let sum = units * own;
        for unit in 0..units {
            lines.has(&format!(
                "[threads.{unit}] unit {unit}: 4 threads of {units} units filled cells that add \
                 up to {sum}"
            ));
        }
    }
}

/// Returns the workflow in the text of an example, for the programs of this test.
fn workflow_of(example: &str) -> String {
    let lines = example.lines();
    let lines = lines.filter_map(|line| line.strip_prefix("//!").map(str::trim_start));
    let lines = lines.skip_while(|line| *line != "```toml").skip(1);
    let lines: Vec<&str> = lines.take_while(|line| *line != "```").collect();
    let workflow = lines.join("\n");
    workflow.replace("target/release/examples", "target/debug")
}

/// The units of the solver have global memory without those of the analysis, and the other way
/// round: with shared memory, and without.
#[test]
fn global_memory_of_one_program() {
    let programs = Programs::new();
    let example = include_str!("../../../../crates/samite/examples/two_programs.rs");
    programs.write("rod.toml", &workflow_of(example));
    for options in ["", "--config fabric.nodes=3"] {
        let lines = programs.run(&format!("{options} rod.toml"));
        let said = lines.of("analysis.0");
        assert_eq!(said, ["20 steps; the heat of the last one is 1000.000000"]);
    }
}

/// The programs whose lines `docs/staging.md` counts.
#[test]
fn a_writer_and_a_reader() {
    let programs = Programs::new();
    let workflow = include_str!("../../../../crates/samite/examples/stage_writer.rs");
    programs.write("field.toml", &workflow_of(workflow));
    let lines = programs.run("field.toml");
    let said = lines.of("reader.0");
    let largest = |step: u64| step * 60_000 + 109 * 300 + 69;
    assert_eq!(
        said,
        (0..10)
            .map(|step| largest(step).to_string())
            .collect::<Vec<_>>()
    );
}
