//! The program `chase`: unit 0 is the client, every other unit has a part of the table.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use samite::Fabric;
use samite::mobile::operation::{Shards, Table as Words, Way};
use samite::mobile::{Mobile, Rights};
use samite::program::{Reporter, Summary};
use samite_report::{Check, Diagram, Fact, Report, Section, Table, figure};

use crate::{Cycle, Error};

/// Chases pointers over units: by gets, by a function, by code that moves.
#[derive(Clone, Debug, Parser)]
#[command(name = "chase")]
pub struct Args {
    /// Words of each server, 8 bytes each
    #[arg(long, default_value_t = 1 << 18, value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    pub words: u64,
    /// Greatest number of steps of a chase; smaller ones are its fourth, sixteenth, and so on
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub depth: u64,
    /// Chases for each depth and way
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub repeats: u64,
    /// Seed of the cycle, which the client makes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where a page about the run goes
    #[arg(long)]
    pub report: Option<PathBuf>,
}

/// The grant under which servers offer their words.
const GRANT: usize = 0;
/// Tag of the message by which the client ends the servers.
const END: u64 = 1;
/// The horizontal axis of diagrams.
const ALONG: &str = "steps, as powers of two";
/// Words of the cycle that are sent at once.
const PIECE: usize = 128 << 10;

/// How the client reaches the words of the servers.
#[derive(Clone, Copy)]
enum Reach {
    /// By loads: their memory is mapped.
    Mapped,
    /// By frames, which are delayed by this.
    Frames(Duration),
}

impl Reach {
    fn text(self) -> String {
        match self {
            Reach::Mapped => "mapped: gets are loads".to_owned(),
            Reach::Frames(Duration::ZERO) => "frames, as fast as this machine".to_owned(),
            Reach::Frames(delay) => format!("frames, which take {delay:?}"),
        }
    }

    /// Returns by how much moved code is faster than gets, by the model: a read takes two delays,
    /// and code moves with the probability that the next word is elsewhere.
    fn model(self, servers: u64) -> String {
        match (self, servers) {
            (Reach::Mapped, _) => "none: nothing is sent for a get".to_owned(),
            (_, 1) => "none: code never moves".to_owned(),
            _ => format!("2 / (1 - 1/S) = {:.2}", 2.0 / (1.0 - 1.0 / servers as f64)),
        }
    }
}

/// The medians of one depth, by way, and how often the code moved.
struct Row {
    depth: u64,
    times: [Duration; 3],
    best: Option<Way>,
    moves: f64,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
/// [`Error::Wrong`] if a chase ended elsewhere than in the client's own memory; [`Error::Units`];
/// errors of moved code and of the fabric.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let members = fabric.job()?;
    let unit = fabric.identity().unit;
    let Some(servers) = (members.len() as u64)
        .checked_sub(1)
        .filter(|count| *count > 0)
    else {
        return Err(Error::Units(members.len() as u32));
    };
    let mobile = Mobile::new(fabric)?;
    // A multiple of 2 MiB, so that it is mapped into the memory of kernels.
    let bytes = if unit == 0 {
        8
    } else {
        (args.words * 8).next_multiple_of(2 << 20)
    };
    let segment = fabric.allocate(bytes)?;
    if unit > 0 {
        mobile.grant(GRANT, segment.bytes(), Rights::Read);
        Words::serve(&mobile);
        // The client puts the words of this server there before it asks for any.
        fabric.send(members[0], END, &segment.key().to_bytes())?;
        // Whatever this unit waits for, it runs the kernels that come.
        let end = samite::Match::from(members[0], END);
        let deadline = Duration::from_secs(24 * 3600);
        fabric.within(deadline, || fabric.recv(end, &mut []))?;
        return Ok(());
    }
    if let Some(path) = &args.report {
        // A long run must not end with a report that cannot be written.
        samite_report::check_target(path)?;
    }
    let keys = members[1..].iter().map(|server| {
        let mut key = [0; 24];
        fabric.recv(samite::Match::from(*server, END), &mut key)?;
        Ok(samite::SegmentKey::from_bytes(&key))
    });
    let keys: Vec<_> = keys.collect::<Result<_, samite::Error>>()?;
    let cycle = Cycle::new(args.words * servers, args.seed);
    let mut is_mapped = false;
    for (server, key) in (0..).zip(&keys) {
        let remote = fabric.attach(*key)?;
        is_mapped |= remote.mapped().is_some();
        let part = cycle.part(server * args.words, args.words);
        for (number, words) in (0..).zip(part.chunks(PIECE)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            remote.put(number * (PIECE as u64 * 8), &bytes)?;
        }
    }
    let table = Words::new(&Shards::new(&mobile, 1, GRANT, args.words, &keys)?)?;
    let asked = ask(&table, &cycle, args, out);
    for server in &members[1..] {
        fabric.send(*server, END, &[])?;
    }
    let (rows, wrong) = asked?;
    let reach = match (is_mapped, fabric.link()) {
        (true, _) => Reach::Mapped,
        (false, link) => Reach::Frames(link.map_or(Duration::ZERO, |link| link.delay)),
    };
    present(&rows, servers, reach, wrong, args, out)?;
    match wrong {
        0 => Ok(()),
        wrong => Err(Error::Wrong(wrong)),
    }
}

/// Chases in all ways, alternately; returns the medians, and how many results were wrong.
fn ask(
    table: &Words,
    cycle: &Cycle,
    args: &Args,
    out: &mut dyn Write,
) -> Result<(Vec<Row>, u64), Error> {
    let mut depths: Vec<u64> =
        std::iter::successors(Some(args.depth), |depth| (*depth >= 4).then_some(depth / 4))
            .collect();
    depths.reverse();
    let all = depths.len() as u64 * args.repeats;
    let mut progress = Reporter::new(out, all);
    let mut random = fastrand::Rng::with_seed(args.seed + 1);
    let (mut rows, mut wrong, mut done) = (Vec::new(), 0, 0);
    // The first chase of a way includes what happens once: code is sent, words are attached.
    for way in Way::ALL {
        wrong += u64::from(table.chase(way, 1, 0)? != cycle.follow(1, 0));
    }
    for depth in depths {
        let mut times = [const { Vec::new() }; 3];
        let mut moves = 0;
        for _ in 0..args.repeats {
            let start = random.u64(..table.len());
            let expected = cycle.follow(depth, start);
            moves += cycle.moves(depth, start, args.words);
            for (way, times) in Way::ALL.into_iter().zip(&mut times) {
                let begin = Instant::now();
                let found = table.chase(way, depth, start)?;
                times.push(begin.elapsed());
                wrong += u64::from(found != expected);
            }
            wrong += u64::from(table.chase_auto(depth, start)? != expected);
            done += 1;
            progress.report(done, || format!("depth {depth}"))?;
        }
        rows.push(Row {
            depth,
            times: times.map(median),
            best: table.best(depth),
            moves: moves as f64 / (args.repeats * depth) as f64,
        });
    }
    Ok((rows, wrong))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints the table, and writes the report.
fn present(
    rows: &[Row],
    servers: u64,
    reach: Reach,
    wrong: u64,
    args: &Args,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let ratio = |one: Duration, two: Duration| one.as_secs_f64() / two.as_secs_f64();
    let header = ["steps", "gets (us)", "function (us)", "moved (us)"];
    let header = header
        .into_iter()
        .chain(["gets / moved", "moves per step", "auto"]);
    let mut table = Table::new(header);
    for row in rows {
        let [gets, function, moved] = row.times;
        table.add([
            row.depth.to_string(),
            format!("{:.2}", micros(gets)),
            format!("{:.2}", micros(function)),
            format!("{:.2}", micros(moved)),
            format!("{:.2}", ratio(gets, moved)),
            format!("{:.2}", row.moves),
            row.best.map_or("-", Way::name).to_owned(),
        ]);
    }
    writeln!(out, "{}", table.text(rows.len()))?;
    let chases = rows.len() as u64 * args.repeats * 4 + Way::ALL.len() as u64;
    let detail = format!(
        "{} of {chases} chases ended where they should",
        chases - wrong
    );
    let summary = Summary::new("Pointer chase")
        .row("servers", servers)
        .row("words of each", args.words)
        .row("words of others", reach.text())
        .verification(wrong == 0, &detail);
    write!(out, "{summary}")?;
    let Some(path) = &args.report else {
        return Ok(());
    };
    let points = |value: &dyn Fn(&Row) -> f64| {
        rows.iter()
            .map(|row| ((row.depth as f64).log2(), value(row)))
            .collect::<Vec<_>>()
    };
    let mut diagrams = vec![Diagram::new(
        "Time by gets / time of moved code",
        ALONG,
        points(&|row| ratio(row.times[0], row.times[2])),
    )];
    for (at, way) in Way::ALL.into_iter().enumerate() {
        let title = format!("Microseconds per step: {}", way.name());
        let per_step = |row: &Row| micros(row.times[at]) / row.depth as f64;
        diagrams.push(Diagram::new(&title, ALONG, points(&per_step)).logarithmic());
    }
    let most = rows
        .last()
        .map_or(0.0, |row| ratio(row.times[0], row.times[2]));
    let report = Report {
        title: "Pointer chase",
        summary: &format!(
            "A client follows addresses through the memory of {servers} units: by gets, by a function that they have, and by code that moves from unit to unit. With {} steps, moved code is {} times as fast as gets. Times are medians. `moves per step` is the part of the steps that lead to another unit, and `auto` is the way that `chase_auto` has come to prefer; where two are about equally fast, that may be either, and `-` means that it was still trying them.",
            args.depth,
            figure(most),
        ),
        checks: &[Check::new("results", wrong == 0, &detail)],
        field: None,
        facts: &[(
            "Parameters",
            vec![
                Fact::new("servers", servers),
                Fact::new("words of each server", args.words),
                Fact::new("chases per depth and way", args.repeats),
                Fact::new("words of other units", reach.text()),
                Fact::new("gets / moved, by the model", reach.model(servers)),
            ],
        )],
        sections: &[Section {
            title: "Time of a chase".into(),
            diagrams,
            table: Some(table),
            ..Section::default()
        }],
    };
    report.write(path)?;
    writeln!(out, "report: {}", path.display())?;
    Ok(())
}
