//! How much the command shows, and whether in colour: `-q`, `-v`, `--color` and `NO_COLOR`.

use clap::builder::StyledStr;
use clap::builder::styling::{AnsiColor, Style};
use clap::{Arg, ArgAction, ColorChoice};
use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::OnceLock;

/// Options of every command. The value of `--color` is in [`crate::words::Words`], since the parser
/// itself prints in colour.
#[derive(Clone, Copy, clap::Args)]
#[command(arg(color()))]
pub(crate) struct StyleArgs {
    /// Show results, the output of units and errors, but no notes and no progress bars
    #[arg(short, long, global = true, help_heading = "Output")]
    quiet: bool,
    /// Log what this command does to standard error; -vv and -vvv log more. SAMITE_LOG has
    /// precedence
    #[arg(short, long, global = true, help_heading = "Output", action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
}

fn color() -> Arg {
    Arg::new("color")
        .long("color")
        .global(true)
        .help_heading("Output")
        .help("Whether to use colours; auto: on a terminal, if NO_COLOR is not set")
        .value_name("WHEN")
        .default_value("auto")
        .value_parser(clap::value_parser!(ColorChoice))
        // After the others.
        .display_order(100)
}

static QUIET: OnceLock<bool> = OnceLock::new();
/// Whether standard output and standard error are in colour.
static COLORED: OnceLock<[bool; 2]> = OnceLock::new();

impl StyleArgs {
    /// Returns the level of the log, unless `SAMITE_LOG` says another one.
    pub(crate) fn level(self) -> &'static str {
        match (self.quiet, self.verbose) {
            (true, _) => "error",
            (false, 0) => "warn",
            (false, 1) => "info",
            (false, 2) => "debug",
            (false, _) => "trace",
        }
    }

    /// Applies them to all output of this process.
    pub(crate) fn apply(self) {
        QUIET.get_or_init(|| self.quiet);
    }
}

/// Chooses whether to use colours. This is done first, since the parser prints, too.
pub(crate) fn choose(color: ColorChoice) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let may = |is_terminal: bool| match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && !is_dumb && !is_set("NO_COLOR"),
    };
    let colored = [
        may(std::io::stdout().is_terminal()),
        may(std::io::stderr().is_terminal()),
    ];
    COLORED.get_or_init(|| colored);
    // `samite top` draws with it, on standard output.
    crossterm::style::force_color_output(colored[0]);
}

/// Returns true if only results and errors are shown.
pub(crate) fn is_quiet() -> bool {
    QUIET.get().is_some_and(|quiet| *quiet)
}

/// A standard stream of this process.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    Stdout,
    Stderr,
}

/// Returns true if a stream is in colour.
pub(crate) fn is_colored(out: Out) -> bool {
    COLORED.get().is_some_and(|colored| colored[out as usize])
}

/// Returns a text of the parser, in colour if the stream is.
pub(crate) fn text(out: Out, styled: &StyledStr) -> String {
    match is_colored(out) {
        true => styled.ansi().to_string(),
        false => styled.to_string(),
    }
}

/// Formats a text in bold and in a colour, if the stream is in colour.
pub(crate) fn paint(out: Out, color: AnsiColor, text: impl Display) -> String {
    match is_colored(out) {
        true => {
            let style = Style::new().bold().fg_color(Some(color.into()));
            format!("{style}{text}{style:#}")
        }
        false => text.to_string(),
    }
}
