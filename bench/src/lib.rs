//! Measures Samite beside its peers.
//!
//! Every contestant is started once per placement and then waits in `read()`, so that all of them
//! can be measured in turn on the same cores: ours, peer, ours, peer. A figure is the median of
//! such interleaved repeats; the physical limit is measured among them.
//!
//! | file | what it holds |
//! |---|---|
//! | `measure`, `case` | a command, the meaning of its answer, the bar it has to meet |
//! | `message`, `threads`, `oversubscribed`, `onesided`, `collectives`, `lock`, `gups`, `staging`, `coherence`, `video`, `mobile` | the cases of the benches |
//! | `contestant` | processes that wait for commands on fifos |
//! | `ucx` | `ucx_perftest`, which has to be started for every measurement |
//! | `peers/` | the peers, and how they are built and started |
//! | `placement` | the cores of a case's units |
//! | `plan` | calibration, interleaving, medians |
//! | `study` | the pages of the video: one run of each system |
//! | `overhead` | the model t = t_raw + c |
//! | `unit/`, `limit` | our contestant, and the one that measures the physical limits |
//! | `control` | their side of the protocol below |
//! | `figures`, `host` | the JSON object and the table |
//!
//! # Control protocol
//!
//! A contestant gets a control folder as its last argument, `SAMITE_BENCH_RANKS` and, if its ranks
//! are to be pinned, `SAMITE_BENCH_CPUS` (`"0,1"`: rank r runs on entry r modulo the length). Rank
//! r blocks in `read()` on the fifo `ctl.<r>`; every rank reads the same lines. Rank 0 first writes
//! `ready` to the fifo `out` (when all ranks have opened theirs), then one line per command: a
//! number, `unsupported`, or `error TEXT`. End of file on `ctl.<r>` means the same as `quit`.
//!
//! | command | number in the answer |
//! |---|---|
//! | `latency BYTES ITERS WARMUP` | seconds of ITERS round trips, with separate send and receive buffers |
//! | `bandwidth KIND BYTES ITERS WARMUP` | the same; KIND is `malloc`, `segment`, `segment-copy`, `hugepages` or `cold` (new buffers each round, the sender's touched, the receiver's not, only the exchange on the clock) |
//! | `rate BYTES WINDOW ITERS WARMUP` | seconds of ITERS windows, each WINDOW messages to rank 1 and 4 bytes back |
//! | `stream BYTES WINDOW ITERS WARMUP` | the same |
//! | `alltoall BYTES ITERS WARMUP` | seconds of ITERS exchanges of BYTES between each pair of ranks |
//! | `barrier ITERS WARMUP` | seconds of ITERS barriers |
//! | `idle SECONDS` | processor seconds of rank 1, blocked in a receive for SECONDS |
//! | `memory` | bytes of shared memory of one active pair |
//! | `put BYTES ITERS WARMUP`, `get …` | seconds of ITERS blocking operations of rank 0 on the memory of rank 1, complete at both ends |
//! | `put_nb BYTES ITERS WARMUP` | seconds of ITERS puts that are started and then waited for |
//! | `strided BLOCKS BYTES ITERS WARMUP` | seconds of ITERS puts of BLOCKS blocks; blocks of BYTES, which are contiguous at the source, go to every second block of the target |
//! | `atomic KIND ITERS WARMUP` | seconds of ITERS fetch-and-adds on a word of rank 1: by rank 0 (`single`), or by both (`contended`) |
//! | `collective OPERATION KIND BYTES ITERS WARMUP` | seconds of ITERS of `barrier`, `allreduce` (sum of doubles), `bcast` (from rank 0), `alltoall` (BYTES per pair); KIND is `segment` or `private` |
//! | `lock KIND ITERS WARMUP` | seconds in which the last rank (`uncontended`) or every rank (`contended`) takes a lock ITERS times and increases a counter |
//! | `gups KIND ITERS WARMUP` | seconds in which every rank makes ITERS random updates: one by one (`plain`) or aggregated (`aggregated`), at most 1024 per rank in flight |
//! | `is CLASS` | seconds of the ten iterations of NPB IS |
//! | `step KIND BYTES ITERS WARMUP` | seconds in which rank 1 reads ITERS windows of 4 steps of rank 0, with a queue of 2 steps between them; a step is one array of BYTES of doubles (rows x columns, the columns the smallest power of two that is not below the rows); KIND says which side has an array of its own, and copies, if the contestant can avoid it: `put` (the writer), `get` (the reader), `copy` (both), `view` (neither) |
//! | `slab KIND BYTES ITERS WARMUP` | the same, but the reader reads one in a hundred of the columns, beginning at a third of them |
//! | `store KIND BYTES ITERS WARMUP` | seconds in which rank 0 stores ITERS values of BYTES under a name, and rank 1 fetches each, one after the other; KIND as for `step`: `put`, `copy` |
//! | `peak KIND BYTES ITERS WARMUP` | the most memory (summed PSS, in bytes) that all processes of the contestant have while steps as above (or values) are transferred, with a queue of one step between them, minus what they had before the first transfer |
//! | `file OPERATION BYTES ITERS WARMUP` | seconds of ITERS files of BYTES: `write`, `write-synced` (until they are on the disk), `read` (what was just written); for us, a stream of one step with the method `file`, opened and closed |
//! | `threads KIND THREADS ITERS WARMUP` | (ours only) for `put`, the seconds in which each of THREADS threads of rank 0 makes ITERS times 1000 puts of eight bytes, all at once; for `turns`, the sum of ITERS round trips of eight bytes, which the threads make in turn |
//! | `index BLOCKS SPREAD FORM` | (ours only) bytes of the index of BLOCKS blocks in three dimensions, a domain of SPREAD points for each in every dimension; FORM says whether they form a grid (`grid`, `odd`) |
//! | `layout SHAPE WRITERS READERS SERVERS FIGURE` | (ours only) the distribution of an array over servers: SHAPE is `matched` (5 x WRITERS x 512000) or `mismatched` (5 x 512 x 1000 WRITERS); FIGURE is `balance` (bytes of the fullest server over the mean), `index` (bytes at a reader), or the most connections of a `writer`, `reader` or `server` |
//! | `workflow FIGURE NAME WORD…` | (ours only) a figure of a whole workflow, run by `samite run`; see `unit/staging/workflow.rs` |
//! | `chunk KIND OF BYTES ITERS WARMUP` | (ours only) what rank 0 needs for ITERS of `hit` (a read guard of a version that it knows), `miss` (of one that it does not know), `upgrade` (a write guard), `commit` (a write guard, a copy and a commit), `event` (from the beginning of a commit to its event at the other rank), `event-own` (likewise, if the writer is the home); OF is `seconds`, or `trips` (ITERS times the quotient of that and of ITERS round trips of eight bytes between the ranks) |
//! | `share KIND BYTES ITERS WARMUP` | a value of BYTES whose pages begin with the number of its version: seconds of a read, while rank 0 writes a version every millisecond for 0.2 s and the others read the latest one (`one-writer`; `cached`: a reader may keep what it has until it hears of a newer one); seconds in which both ranks write it in turn, ITERS times each (`ping-pong`), or each a value of its own (`ping-pong-each`); seconds in which each rank writes ITERS versions of a value of its own (`partitioned`; `pipelined`: it need not wait for each) |
//! | `recovery PLACE ITERS WARMUP` | (ours only) the most seconds, among ITERS trials, from `kill -9` of the holder of a write guard until another process that waits has its guard, times ITERS; see `unit/recovery.rs` |
//! | `mobile latency, rate ITERS WARMUP` | seconds of ITERS calls that add one to a word of rank 1: with a reply each, or without replies |
//! | `mobile above` | (ours only) seconds that such a call takes beyond one of a function |
//! | `mobile bytes ITERS WARMUP` | (ours only) bytes of the frames of ITERS such calls, without the heads of the transport |
//! | `mobile first KIND`, `mobile compute FORM` | seconds of the first call of code (`cold`, `prefetched`, `bitcode`; `new-wasm` and `new-bitcode`: between two processes that rank 0 starts for it); of a filter and a sum over 64 MiB (`wasm`, `bitcode`) |
//! | `mobile chase, chase-function, chases, mapped DELAY DEPTH ITERS WARMUP` | seconds of ITERS chases of DEPTH dependent reads through the memory of the other ranks (`chases`: of 16 at once), over a link with a one-way delay in microseconds; `mapped`: without one |
//! | `mobile filter, filter-function` | (ours only) seconds of a filter over 64 MiB of staged data, behind a link of 1 Gbit/s |
//! | `mobile gather, list, btree, bfs DELAY SIZE ITERS WARMUP` | seconds of ITERS gathers of SIZE words, look-ups of the SIZE-th node of a list or of a key of a tree of SIZE pairs, or searches of a graph of SIZE vertices, which lie at the other ranks |
//! | `chain DEPTH ITERS WARMUP` | the same through the memory of rank 1, without a delay |
//! | `video FIGURE WIDTH HEIGHT FRAMES TIMES` | FRAMES frames go from rank 0 to workers, which take TIMES (microseconds, one for each, with commas) for a frame, and to the last rank, which puts them in order: the seconds of a new run (`wall`); those over the seconds that all workers need if none ever waits (`ideal`); the sum over all workers of the distance between their frames and their share, over twice the frames (`deviation`): the median of the last runs of `wall`; or what the last of them was like (`run`): not a number, but a JSON object in one line, see `study` |
//! | `exchange ITERS WARMUP` | (limit only) seconds of ITERS round trips of one cache line |
//! | `memcpy BYTES ITERS WARMUP` | (limit only) seconds of ITERS copies of BYTES, buffers warm |
//! | `frames KIND BYTES ITERS WARMUP` | seconds in which ITERS frames go from memory of rank 0 (`copied`: its own; `in-place`: where it can share them, if there is such memory) to rank 1 and, as results whose first eight bytes are the frame's, back; at most two are on the way |
//! | `raw OPERATION BYTES ITERS WARMUP` | (limit only) the same between private and shared memory: `put`, `get` |
//! | `raw OPERATION ITERS WARMUP` | (limit only) seconds of ITERS accesses to a word of shared memory: `store`, `load`, `add` |
//!
//! After the timed loop, every rank of a contestant checks once that the data arrive completely,
//! except for `threads`. Rank 0 answers when all have done so.
#![forbid(unsafe_code)]

mod case;
mod coherence;
mod collectives;
mod contestant;
mod control;
mod figures;
mod gups;
mod host;
mod limit;
mod lock;
mod measure;
mod message;
mod mobile;
mod network;
mod onesided;
mod overhead;
mod oversubscribed;
mod peers;
mod placement;
mod plan;
mod staging;
mod study;
mod threads;
mod ucx;
mod unit;
mod video;

pub use case::Bar;
pub use figures::{Failure, Figures, Row};
pub use host::Host;
pub use limit::run_limit;
pub use measure::Better;
pub use overhead::Overhead;
pub use study::{Absent, Ran, Study};
pub use unit::{Programs, run_first, run_holder, run_unit};

use case::Case;

/// The benches that [`run`] knows.
pub const BENCHES: [&str; 13] = [
    "message",
    "threads",
    "oversubscribed",
    "onesided",
    "collectives",
    "lock",
    "gups",
    "is",
    "staging",
    "coherence",
    "video",
    "mobile",
    "network",
];

/// The options of a bench.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved repeats of each case; the figure is their median.
    pub repeats: u32,
    /// Shorter measurements, for a first look.
    pub quick: bool,
    /// The two cores to run on; by default, chosen among the allowed ones.
    pub cpus: Option<Vec<usize>>,
    /// Run only cases whose name contains this.
    pub only: Option<String>,
    /// Command that starts the ranks of Samite; `{ranks}` in an argument is replaced by their
    /// number, and the control folder is appended. Without it, only the peers are measured.
    pub ours: Option<Vec<String>>,
    /// Command of the contestant that measures the physical limits.
    pub limit: Option<Vec<String>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            repeats: 11,
            quick: false,
            cpus: None,
            only: None,
            ours: None,
            limit: None,
        }
    }
}

/// Runs the bench `name`, and shows its progress on the terminal. The returned figures print as a
/// table.
pub fn run(name: &str, options: &Options) -> anyhow::Result<Figures> {
    let cases = cases(name, options)?;
    plan::measure(name, cases, options)
}

fn cases(name: &str, options: &Options) -> anyhow::Result<Vec<Case>> {
    let mut cases = match name {
        "message" => message::cases(),
        "threads" => threads::cases(),
        "oversubscribed" => oversubscribed::cases(options.quick),
        "onesided" => onesided::cases(),
        "collectives" => collectives::cases(),
        "lock" => lock::cases(),
        "gups" => gups::cases(),
        "is" => gups::sorts(),
        "staging" => staging::cases(),
        "coherence" => coherence::cases(),
        "video" => video::cases(options.quick),
        "mobile" => mobile::cases(),
        network::BENCH => network::cases(options.quick),
        _ => anyhow::bail!(
            "there is no bench `{name}`; the benches are {}",
            BENCHES.join(", ")
        ),
    };
    if let Some(only) = &options.only {
        let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
        cases.retain(|case| case.name.contains(only.as_str()));
        anyhow::ensure!(
            !cases.is_empty(),
            "no case of the bench `{name}` contains `{only}`: it has {}",
            names.join(", ")
        );
    }
    Ok(cases)
}
