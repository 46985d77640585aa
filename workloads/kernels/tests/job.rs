//! The programs on several units, however bytes travel: every result is checked by the program
//! itself, and that it says so is checked here.

use std::path::{Path, PathBuf};

use clap::Parser;
use samite::{Fabric, Mask};
use samite_kernels::Error;
use samite_kernels::job::{gups, histogram, index_gather, sort};
use samite_testkit::{Failed, Outcome, check, units};

/// Runs a program, given as its command line, and looks at what it says.
fn run<A: Parser>(
    fabric: &Fabric,
    line: &str,
    program: impl FnOnce(&Fabric, &A, &mut dyn std::io::Write) -> Result<(), Error>,
) -> Outcome {
    let args = A::try_parse_from(line.split(' ')).map_err(Failed::new)?;
    let mut out = Vec::new();
    program(fabric, &args, &mut out).map_err(Failed::new)?;
    let (text, speaks) = (String::from_utf8_lossy(&out), fabric.identity().unit == 0);
    check!(text.contains("SUCCESSFUL") == speaks, "{text}");
    check!(text.is_empty() != speaks, "{text}");
    Ok(())
}

fn irregular(name: &str, count: u32, mask: Mask, words_log2: u32, accesses: u64) {
    units(count).mask(mask).run(name, |fabric, _| {
        let line = format!("gups --words-log2 {words_log2} --updates {accesses}");
        run(fabric, &line, gups::run)?;
        let line = format!("histogram --counters 77 --updates {accesses}");
        run(fabric, &line, histogram::run)?;
        let line = format!("index-gather --elements 1001 --reads {accesses}");
        run(fabric, &line, index_gather::run)
    });
}

#[test]
fn irregular_on_one_unit() {
    irregular("irregular_on_one_unit", 1, Mask::default(), 10, 100_000);
}

#[test]
fn irregular_on_two_units() {
    irregular("irregular_on_two_units", 2, Mask::default(), 12, 100_000);
}

#[test]
fn irregular_on_three_units() {
    irregular("irregular_on_three_units", 3, Mask::default(), 8, 20_000);
}

#[test]
fn irregular_on_four_units() {
    irregular("irregular_on_four_units", 4, Mask::default(), 1, 10_000);
}

#[test]
fn irregular_on_three_units_by_messages() {
    let name = "irregular_on_three_units_by_messages";
    irregular(name, 3, Mask::MESSAGES_ONLY, 8, 5_000);
}

/// A file of a test, the same for all its units.
fn scratch(name: &str, fabric: &Fabric) -> PathBuf {
    let job = &fabric.identity().job;
    std::env::temp_dir().join(format!("samite-{job}-{name}"))
}

/// Lines of many lengths with many repetitions; the last one does not end.
fn text(lines: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(lines);
    let mut text = Vec::new();
    for _ in 0..lines {
        let word = random.u64(..500);
        text.extend_from_slice(format!("{word:x}").repeat(random.usize(..6)).as_bytes());
        text.push(b'\n');
    }
    text.extend_from_slice(b"the end");
    text
}

fn words(count: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(count);
    (0..count)
        .flat_map(|_| random.u64(..1 << 40).to_le_bytes())
        .collect()
}

/// Sorts a file and compares the result with what a vector's sort makes of it.
fn sorted(name: &str, count: u32, mask: Mask, kind: &str, input: &[u8], expected: &[u8]) {
    units(count).mask(mask).run(name, |fabric, members| {
        let (from, to) = (scratch("input", fabric), scratch("output", fabric));
        let leads = fabric.identity().unit == 0;
        if leads {
            std::fs::write(&from, input)?;
        }
        fabric.barrier(members)?;
        let line = format!(
            "sort --records {kind} {} -o {}",
            from.display(),
            to.display()
        );
        let result = run(fabric, &line, sort::run);
        if leads {
            let found = std::fs::read(&to);
            [&from, &to]
                .into_iter()
                .for_each(|path| _ = std::fs::remove_file(path));
            result?;
            check!(found? == expected, "the file is not what it should be");
            return Ok(());
        }
        result
    });
}

fn sorted_lines(name: &str, count: u32, mask: Mask, input: &[u8]) {
    let mut lines: Vec<_> = input.split(|byte| *byte == b'\n').collect();
    // What comes after the last newline is a line if there is something.
    lines.pop_if(|last| last.is_empty());
    lines.sort_unstable();
    let expected: Vec<u8> = lines
        .iter()
        .flat_map(|line| [line, &b"\n"[..]].concat())
        .collect();
    sorted(name, count, mask, "lines", input, &expected);
}

fn sorted_words(name: &str, count: u32, mask: Mask, input: &[u8]) {
    let (words, _) = input.as_chunks();
    let mut words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.sort_unstable();
    let expected: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    sorted(name, count, mask, "u64", input, &expected);
}

#[test]
fn lines_on_one_unit() {
    sorted_lines("lines_on_one_unit", 1, Mask::default(), &text(1000));
}

#[test]
fn lines_on_two_units() {
    sorted_lines("lines_on_two_units", 2, Mask::default(), &text(50_000));
}

#[test]
fn lines_on_four_units() {
    sorted_lines("lines_on_four_units", 4, Mask::default(), &text(10_000));
}

#[test]
fn lines_on_three_units_by_messages() {
    let name = "lines_on_three_units_by_messages";
    sorted_lines(name, 3, Mask::MESSAGES_ONLY, &text(3000));
}

#[test]
fn fewer_lines_than_units() {
    sorted_lines("fewer_lines_than_units", 4, Mask::default(), b"b\na\n");
}

#[test]
fn an_empty_file_is_sorted() {
    sorted_lines("an_empty_file_is_sorted", 3, Mask::default(), b"");
}

#[test]
fn words_on_two_units() {
    sorted_words("words_on_two_units", 2, Mask::default(), &words(100_000));
}

#[test]
fn words_on_three_units_by_messages() {
    let name = "words_on_three_units_by_messages";
    sorted_words(name, 3, Mask::MESSAGES_ONLY, &words(1001));
}

#[test]
fn no_words_at_all() {
    sorted_words("no_words_at_all", 2, Mask::default(), b"");
}

/// All units end with an error that names the file, and none waits for another.
fn refused(name: &str, args: &'static str, input: Option<&[u8]>, says: &str) {
    units(3).run(name, |fabric, members| {
        let (from, to) = (scratch("input", fabric), Path::new("/nowhere/at/all"));
        let leads = fabric.identity().unit == 0;
        if let Some(input) = input
            && leads
        {
            std::fs::write(&from, input)?;
        }
        fabric.barrier(members)?;
        let line = format!("sort {args} {} -o {}", from.display(), to.display());
        let args = sort::Args::try_parse_from(line.split(' ')).map_err(Failed::new)?;
        let result = sort::run(fabric, &args, &mut std::io::sink());
        fabric.barrier(members)?;
        if leads {
            let _ = std::fs::remove_file(&from);
        }
        let error = result.err().map(|error| {
            let cause = std::error::Error::source(&error);
            format!(
                "{error}: {}",
                cause.map_or(String::new(), ToString::to_string)
            )
        });
        let text = error.unwrap_or_default();
        let elsewhere = text.contains("its own error says why");
        check!(text.contains(says) || elsewhere && !leads, "{text}");
        Ok(())
    });
}

#[test]
fn a_missing_file_is_named() {
    refused(
        "a_missing_file_is_named",
        "--records lines",
        None,
        "-input could not be read",
    );
}

#[test]
fn a_file_of_half_a_word_is_refused() {
    let (name, input) = ("a_file_of_half_a_word_is_refused", &[7; 12][..]);
    refused(
        name,
        "--records u64",
        Some(input),
        "12 bytes are no whole number of words",
    );
}

#[test]
fn a_result_that_cannot_be_written_is_named() {
    let name = "a_result_that_cannot_be_written_is_named";
    refused(
        name,
        "--records lines",
        Some(b"a\n"),
        "/nowhere/at/all could not be written",
    );
}
