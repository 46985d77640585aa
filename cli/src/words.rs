//! Reads as much of the command line as has to be known before it can be parsed: `run` and `doctor`
//! have the parameters of a workflow as options, a built-in program has a help of its own, and
//! `--color` applies to what the parser prints, and `run --outcome` to what it refuses.

use clap::{Arg, ColorChoice, Command, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// The command: `run`, and of `config show` the last word.
    pub(crate) command: String,
    /// The workflow that the command is about.
    pub(crate) workflow: Option<PathBuf>,
    /// The program of `run`, if it is no workflow, and its arguments.
    pub(crate) program: Option<(OsString, Vec<OsString>)>,
    /// The option of samite itself that asks for help: `-h` or `--help`.
    pub(crate) help: Option<&'static str>,
    pub(crate) color: ColorChoice,
    /// Where `run` writes its outcome.
    pub(crate) outcome: Option<PathBuf>,
}

impl Words {
    /// Reads the words of a command line, the name of the executable first.
    pub(crate) fn read(root: &Command, arguments: &[OsString]) -> Words {
        let mut found = Words::default();
        let mut reader = Reader {
            root,
            command: root,
            is_program: false,
            are_options_over: false,
        };
        let mut rest = arguments.iter().skip(1);
        while let Some(word) = rest.next() {
            let text = word.to_string_lossy();
            if !reader.are_options_over && text.len() > 1 && text.starts_with('-') {
                if let Some(value) = reader.option(&text, &mut found) {
                    let value = value.or_else(|| rest.next().cloned());
                    let name = text.split_once('=').map_or(&*text, |(name, _)| name);
                    match name {
                        "--color" => {
                            let value = value.as_deref().and_then(OsStr::to_str);
                            let color = value.map(|text| ColorChoice::from_str(text, false));
                            found.color = color.and_then(Result::ok).unwrap_or_default();
                        }
                        "--outcome" if found.command == "run" => {
                            // The parser refuses an option as its value.
                            let is_value = |value: &OsString| {
                                text.contains('=') || !value.as_encoded_bytes().starts_with(b"-")
                            };
                            found.outcome = value.filter(is_value).map(PathBuf::from);
                        }
                        _ => {}
                    }
                }
            } else if reader.command.has_subcommands() {
                let Some(command) = reader.command.find_subcommand(word) else {
                    break;
                };
                reader.command = command;
                found.command = command.get_name().to_owned();
            } else if reader.has_parameters() && !reader.is_program && is_workflow(word) {
                // Options may follow. Of two files the parser says that the second is too many.
                found.workflow.get_or_insert_with(|| word.into());
            } else if found.command == "run" && found.workflow.is_none() {
                // All that follows is the program's.
                found.program = Some((word.clone(), rest.cloned().collect()));
                break;
            }
        }
        found
    }
}

struct Reader<'a> {
    root: &'a Command,
    command: &'a Command,
    /// The number of units was given: then the word is a program, whatever its name.
    is_program: bool,
    /// After `--`.
    are_options_over: bool,
}

impl Reader<'_> {
    fn has_parameters(&self) -> bool {
        ["run", "doctor"].contains(&self.command.get_name())
    }

    /// Reads an option. Returns its value if it takes one, or `Some(None)` if that is the next
    /// word.
    fn option(&mut self, text: &str, found: &mut Words) -> Option<Option<OsString>> {
        if text == "--" {
            self.are_options_over = true;
            return None;
        }
        if let Some(long) = text.strip_prefix("--") {
            if let Some((_, value)) = long.split_once('=') {
                return Some(Some(value.into()));
            }
            if long == "help" {
                found.help = Some("--help");
                return None;
            }
            let known = self.find(|arg| arg.get_long() == Some(long));
            // One that is not ours is a parameter.
            let takes_value = known.map_or(self.has_parameters(), takes_value);
            return takes_value.then_some(None);
        }
        // Letters, like -vn4.
        for (at, letter) in text.char_indices().skip(1) {
            if letter == 'h' {
                found.help = Some("-h");
            }
            self.is_program |= letter == 'n' && self.command.get_name() == "run";
            let known = self.find(|arg| arg.get_short() == Some(letter));
            if known.is_some_and(takes_value) {
                let value = &text[at + letter.len_utf8()..];
                return Some((!value.is_empty()).then(|| value.into()));
            }
        }
        None
    }

    /// Finds an option of the command, or of all commands.
    fn find(&self, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
        let of_command = self.command.get_arguments();
        let mut all = of_command.chain(self.root.get_arguments());
        all.find(|arg| is_it(arg))
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// Returns true if a word names a workflow file rather than a program.
pub(crate) fn is_workflow(word: &OsStr) -> bool {
    std::path::Path::new(word)
        .extension()
        .is_some_and(|extension| extension == "toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn read(line: &str) -> Words {
        let words = line.split_whitespace().map(Into::into);
        let words: Vec<OsString> = [OsString::from("samite")]
            .into_iter()
            .chain(words)
            .collect();
        Words::read(&Cli::command(), &words)
    }

    #[test]
    fn the_workflow_is_found_among_options() {
        for line in [
            "run w.toml --size 5",
            "run --size 5 w.toml",
            "run --size=5 w.toml",
            "run --help w.toml",
            "run -h w.toml",
            "run --force w.toml",
            "run -q w.toml",
            "run -vv --color never w.toml",
            "-v --color always run w.toml",
            "run --outcome o.json w.toml",
            "run --config a=b --set c=d w.toml",
            "run -- w.toml",
            "doctor --json w.toml",
            "doctor w.toml",
        ] {
            let found = read(line);
            assert_eq!(found.workflow, Some("w.toml".into()), "{line}");
            assert!(found.program.is_none(), "{line}");
        }
        for line in [
            "run -n 4 w.toml",
            "run -n4 w.toml",
            "run -vn 4 w.toml",
            "run",
            "top",
            "",
        ] {
            assert_eq!(read(line).workflow, None, "{line}");
        }
        assert!(is_workflow(OsStr::new("a/w.toml")) && !is_workflow(OsStr::new("toml")));
    }

    #[test]
    fn the_options_of_a_program_are_its_own() {
        let found = read("run -n 2 program --help --color never w.toml");
        let (program, args) = found.program.expect("there is one");
        assert_eq!((program.to_str(), args.len()), (Some("program"), 4));
        assert_eq!((found.help, found.color), (None, ColorChoice::Auto));
        assert_eq!(found.workflow, None);
        assert_eq!(read("run --help gups").help, Some("--help"));
    }

    #[test]
    fn colours_are_found_in_front_and_behind() {
        for line in [
            "--color never run w.toml",
            "run --color=never w.toml",
            "run w.toml --color never",
            "run --color never program",
            "config show --color never",
            "info --calibrate --color never",
        ] {
            assert_eq!(read(line).color, ColorChoice::Never, "{line}");
        }
        assert_eq!(read("run --color green w.toml").color, ColorChoice::Auto);
        // Parameters may have names that begin alike.
        for line in [
            "run --color never w.toml --colormap always",
            "run --color never w.toml --colormap=always",
            "run w.toml --colormap always --color=never",
        ] {
            assert_eq!(read(line).color, ColorChoice::Never, "{line}");
        }
    }

    #[test]
    fn the_outcome_is_that_of_run() {
        for line in [
            "run --outcome o.json w.toml",
            "run --outcome=o.json --no-such-option program",
            "-v run w.toml --outcome o.json --size 3",
        ] {
            assert_eq!(read(line).outcome, Some("o.json".into()), "{line}");
        }
        for line in [
            "doctor --outcome o.json w.toml",
            "run program --outcome o.json",
            "run w.toml --outcomes o.json",
            "run --outcome",
        ] {
            assert_eq!(read(line).outcome, None, "{line}");
        }
    }
}
