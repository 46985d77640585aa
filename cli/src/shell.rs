//! `samite completions` and `samite man`: what a shell and `man` show of the command line.

use crate::Cli;
use crate::screen::{note, say};
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `samite completions`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite completions bash > ~/.local/share/bash-completion/completions/samite
  samite completions fish > ~/.config/fish/completions/samite.fish
  samite completions zsh > FOLDER/_samite      FOLDER is one of zsh's $fpath")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Options of `samite man`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite man | man -l -                        read the page of samite
  samite man ~/.local/share/man/man1           install the pages: man samite-run")]
pub(crate) struct ManArgs {
    /// The folder for the pages of all commands; it is created if it does not exist
    folder: Option<PathBuf>,
}

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut public(), "samite", &mut text);
    say(format_args!("{}", String::from_utf8_lossy(&text)))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page, or writes all of them.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode> {
    let Some(folder) = &args.folder else {
        let mut text = Vec::new();
        Man::new(public()).render(&mut text)?;
        say(format_args!("{}", String::from_utf8_lossy(&text)))?;
        return Ok(ExitCode::SUCCESS);
    };
    let wrong = || format!("cannot write the manual pages to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(wrong)?;
    clap_mangen::generate_to(public(), folder).with_context(wrong)?;
    note(format_args!("the manual pages are in {}", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the command line without the commands that only samite itself starts. A command cannot
/// lose any, so this is a copy with the others.
fn public() -> Command {
    let all = Cli::command();
    let shown = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let about = all.get_about().cloned().unwrap_or_default();
    let examples = all.get_after_help().cloned().unwrap_or_default();
    Command::new("samite")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .after_help(examples)
        .args(all.get_arguments())
        .subcommands(shown)
}
