//! `docs/tutorial.md`: its listings are the examples, word for word, and its outputs are those of a
//! run.
//!
//! A comment above a block says what it is: `<!-- listing FILE -->`, with the name of the file in
//! `crates/samite/examples`, or `<!-- output NAME -->`.

use crate::examples::programs::{Lines, Programs};
use std::path::Path;

/// A block of code, and the comment above it.
pub(crate) struct Block {
    comment: String,
    pub(crate) language: String,
    pub(crate) text: String,
}

const TUTORIAL: &str = "docs/tutorial.md";

pub(crate) fn blocks(document: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(document);
    let text = std::fs::read_to_string(path).expect("the document is there");
    let (mut blocks, mut comment) = (Vec::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```");
            blocks.push(Block {
                comment: std::mem::take(&mut comment),
                language: language.to_owned(),
                text: text.map(|line| format!("{line}\n")).collect(),
            });
        } else if let Some(rest) = line.strip_prefix("<!-- ") {
            comment = rest
                .strip_suffix(" -->")
                .expect("it ends in its line")
                .to_owned();
        }
    }
    blocks
}

/// Returns an example as the reader types it: without its header, and with a private `main`.
fn typed(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/samite/examples");
    let text = std::fs::read_to_string(folder.join(name)).expect("the listing names an example");
    let lines = text.lines().filter(|line| !line.starts_with("//!"));
    let lines = lines.skip_while(|line| line.is_empty());
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    text.replace("pub(crate) fn main", "fn main")
}

/// Checks the listings among these blocks; returns their names.
pub(crate) fn listings(blocks: &[Block]) -> Vec<&str> {
    let listings = blocks.iter().filter_map(|block| {
        let name = block.comment.strip_prefix("listing ")?;
        assert_eq!(block.text, typed(name), "the listing of {name}");
        Some(name)
    });
    listings.collect()
}

#[test]
fn listings_are_the_examples() {
    let blocks = blocks(TUTORIAL);
    assert_eq!(
        listings(&blocks),
        [
            "hello.rs",
            "ring.rs",
            "heat_alone.rs",
            "heat.rs",
            "heat_solver.rs",
            "heat_picture.rs",
            "heat.toml"
        ]
    );
    for block in &blocks {
        let is_program = ["rust", "toml"].contains(&block.language.as_str());
        assert!(
            !is_program || block.comment.starts_with("listing "),
            "nothing checks this block:\n{}",
            block.text
        );
    }
}

/// Checks that the lines of an output in the tutorial were printed.
fn shows(name: &str, printed: &Lines) {
    shows_in(TUTORIAL, name, printed);
}

/// Checks that the lines of an output in a document were printed.
pub(crate) fn shows_in(document: &str, name: &str, printed: &Lines) {
    let blocks = blocks(document);
    let mut shown = blocks
        .iter()
        .filter(|block| block.comment == format!("output {name}"));
    let block = shown
        .next()
        .unwrap_or_else(|| panic!("there is no output {name}"));
    let lines = block
        .text
        .lines()
        .filter(|line| !line.starts_with("$ ") && *line != "...");
    let lines: Vec<&str> = lines.collect();
    assert!(!lines.is_empty(), "the output {name} has lines");
    for line in lines {
        let line = match name {
            "no_reader" | "wrong_tag" | "no_close" => without_numbers(line),
            _ => line.to_owned(),
        };
        for part in lines_of_summary(&line) {
            printed.has(&part);
        }
    }
}

/// Returns the lines as which the last sentence of a job is printed here. The programs of these
/// tests print more than those of a reader, so what a unit said last has several lines.
fn lines_of_summary(line: &str) -> Vec<String> {
    let end = "; the other units were ended";
    match line.split_once("; the last thing it said: ") {
        Some((unit, said)) => vec![
            format!("{unit}; the last thing it said:"),
            format!("    {}", said.trim_end_matches(end)),
            end.to_owned(),
        ],
        None => vec![line.to_owned()],
    }
}

#[test]
fn programs_print_what_it_shows() {
    let programs = Programs::new();
    shows("hello", &programs.run("-n 4 target/debug/hello"));
    shows("ring", &programs.run("-n 4 target/debug/ring"));
    shows("heat", &programs.run("-n 4 target/debug/heat"));
}

/// The plate is the same, however many units share it.
#[test]
fn heat_does_not_depend_on_the_number_of_units() {
    let programs = Programs::new();
    let alone = programs.run("-n 1 --tag-output no target/debug/heat_alone");
    shows("heat_alone", &alone);
    let sum = alone
        .0
        .lines()
        .find(|line| line.starts_with("after 400 sweeps: "));
    let sum = sum.expect("it prints what is left");
    for options in ["-n 1", "-n 3", "-n 6", "--config fabric.nodes=2 -n 4"] {
        let lines = programs.run(&format!("{options} target/debug/heat"));
        lines.has(&format!("[heat.0] {sum} at [50, 60]"));
    }
}

#[test]
fn the_workflow_draws_the_picture() {
    let programs = Programs::new();
    programs.write("heat.toml", &typed("heat.toml"));
    shows("heat.toml", &programs.run("heat.toml"));
    let drawn = pixels(&programs.path("heat.png"));
    let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/heat.png");
    assert!(
        drawn == pixels(&shown),
        "docs/heat.png is what the tutorial draws"
    );
    // As the header of `heat_solver.rs` says it: the file, and where the programs are.
    std::fs::remove_file(programs.path("heat.png")).expect("it was drawn");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/samite/examples/heat.toml");
    let folder = programs.path("target/debug");
    let (file, folder) = (file.display(), folder.display());
    programs.run(&format!(
        "{file} --set program.solver.command={folder}/heat_solver \
         --set program.picture.command={folder}/heat_picture"
    ));
    let by_file = pixels(&programs.path("heat.png"));
    assert!(drawn == by_file, "the workflow in the clone draws the same");
    // The same, through files.
    std::fs::remove_file(programs.path("heat.png")).expect("it was drawn");
    let by_files = "--config stage.method=file --config stage.folder=steps";
    programs.run(&format!("heat.toml {by_files}"));
    assert!(
        drawn == pixels(&programs.path("heat.png")),
        "files have the same steps"
    );
    // White inside the disc at the beginning, black outside.
    let at = |y: usize, x: usize| &drawn[3 * (y * 800 + x)..][..3];
    assert_eq!((at(50, 60), at(5, 5)), (&[255; 3][..], &[0; 3][..]));
}

/// Runs a job that must fail. It is a matter of time which unit fails first, and which units still
/// say something, so all numbers are the same.
fn fails(programs: &Programs, words: &str) -> Lines {
    let (is_success, lines) = programs.try_run(words);
    assert!(!is_success, "{}", lines.0);
    Lines(without_numbers(&lines.0))
}

#[test]
fn mistakes_end_as_it_says() {
    let programs = Programs::new();
    shows("misspelt", &fails(&programs, "-n 4 target/debug/helo"));
    let deadline = "-n 4 --config fabric.deadline=2s target/debug";
    let alone = fails(&programs, &format!("{deadline}/heat_solver"));
    shows("no_reader", &alone);
    programs.put("heat", "no_exchange");
    for units in [1, 4] {
        let lines = programs.run(&format!("-n {units} target/debug/heat"));
        shows(&format!("no_exchange {units}"), &lines);
    }
    programs.put("ring", "wrong_tag");
    shows("wrong_tag", &fails(&programs, &format!("{deadline}/ring")));
    programs.put("heat_solver", "no_close");
    programs.write("heat.toml", &typed("heat.toml"));
    shows("no_close", &fails(&programs, "heat.toml"));
}

fn without_numbers(text: &str) -> String {
    text.replace(|letter: char| letter.is_ascii_digit(), "0")
}

/// Returns the pixels of a picture of 800 x 120 pixels.
fn pixels(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).expect("the picture is there");
    let decoder = png::Decoder::new(std::io::BufReader::new(file));
    let mut picture = decoder.read_info().expect("it is a picture");
    let mut pixels = vec![0; picture.output_buffer_size().expect("it is small")];
    picture.next_frame(&mut pixels).expect("it is whole");
    assert_eq!(pixels.len(), 800 * 120 * 3);
    pixels
}
