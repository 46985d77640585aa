//! The layers of settings that this command sees, and `samite config show`.

use crate::screen::say;
use anyhow::{Context, Result};
use clap::ArgAction;
use samite::config::{ConfigError, Layers, Resolved};
use samite::stage::method::graph::Edge;
use samite_launch::Workflow;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Resolves user file, workflow, environment (with the settings of an outer `samite run`) and
/// `--config` options.
pub(crate) fn resolve(workflow: Option<&Workflow>, options: &[String]) -> Result<Resolved> {
    let mut layers = Layers::default().user_file()?;
    if let Some(workflow) = workflow {
        layers = layers.workflow(workflow.path(), &workflow.settings_text()?)?;
    }
    if let Some(text) = std::env::var_os(samite::variable::CONFIG) {
        layers = layers.outer(&text.to_string_lossy())?;
    }
    layers = layers.own_environment()?;
    for option in options {
        layers = layers.assignment(option)?;
    }
    Ok(layers.resolve()?)
}

/// Makes the folders of streams and of event logs absolute, so that programs in different folders
/// mean the same one: those of the workflow are relative to the folder of the file, others to the
/// present one; in a sweep, all are relative to the folder of the run. The file of the topology is
/// read, not written: the folder of a run does not matter to it.
pub(crate) fn settle_folders(workflow: &Workflow, resolved: &mut Resolved) -> Result<()> {
    let here = std::env::current_dir().context("the present folder cannot be found")?;
    let of_file = format!("{}:", workflow.path().display());
    let settle_in = |run: Option<&Path>, origin: Option<&str>, folder: &mut PathBuf| {
        let is_of_file = origin.is_some_and(|origin| origin.starts_with(&of_file));
        let base = match run {
            Some(run) => run.to_owned(),
            None if is_of_file => workflow.folder(),
            None => here.clone(),
        };
        let whole = here.join(base).join(&*folder);
        // Units get settings as text. A path that is none stays relative to each of them.
        if whole.to_str().is_some() {
            *folder = whole;
        }
    };
    let settle = |origin: Option<&str>, folder: &mut PathBuf| {
        settle_in(workflow.run_folder(), origin, folder);
    };
    let names: Vec<String> = resolved.config.stage.streams.keys().cloned().collect();
    for name in names {
        let setting = format!("stage.{name}.folder");
        let origin = resolved.origin(&setting).map(str::to_owned);
        let table = resolved.config.stage.streams.get_mut(&name);
        if let Some(folder) = table.and_then(|table| table.folder.as_mut()) {
            settle(origin.as_deref(), folder);
        }
    }
    let origin = resolved.origin("stage.folder").map(str::to_owned);
    if let Some(folder) = &mut resolved.config.stage.all.folder {
        settle(origin.as_deref(), folder);
    }
    let origin = resolved.origin("dsm.log_dir").map(str::to_owned);
    settle(origin.as_deref(), &mut resolved.config.dsm.log_dir);
    let origin = resolved.origin("dsm.topology").map(str::to_owned);
    if !resolved.config.dsm.topology.as_os_str().is_empty() {
        settle_in(None, origin.as_deref(), &mut resolved.config.dsm.topology);
    }
    Ok(())
}

/// Rejects settings for a stream that no edge has: they were meant for another one. Only the user's
/// own file may have tables for the streams of other workflows.
///
/// # Errors
/// [`ConfigError::Stream`], with the nearest stream.
pub(crate) fn check_streams(
    workflow: &Workflow,
    edges: &[Edge],
    resolved: &Resolved,
) -> Result<(), ConfigError> {
    if edges.is_empty() {
        return Ok(());
    }
    let streams = edges.iter().flat_map(|edge| [&edge.stream, &edge.name]);
    let streams: BTreeSet<&str> = streams.map(String::as_str).collect();
    for (name, origin) in meant_streams(Some(workflow), resolved) {
        if streams.contains(name.as_str()) {
            continue;
        }
        let all: Vec<&str> = streams.iter().copied().collect();
        let hint = match samite_launch::nearest(&name, all.iter().copied()) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => format!("; its edges have {}", all.join(", ")),
        };
        return Err(ConfigError::Stream { origin, name, hint });
    }
    Ok(())
}

/// Returns the streams that the command line or this workflow has settings for, each with an origin
/// of these. Those of other origins need not be meant for this run.
pub(crate) fn meant_streams(
    workflow: Option<&Workflow>,
    resolved: &Resolved,
) -> Vec<(String, String)> {
    let own = workflow.map(|workflow| format!("{}:", workflow.path().display()));
    let is_own = |origin: &str| own.as_ref().is_some_and(|own| origin.starts_with(own));
    let is_meant = |origin: &&str| *origin == "--config" || is_own(origin);
    let streams = resolved.config.stage.streams.keys();
    let meant = |name: &String| {
        let origin = resolved.origins_of_stream(name).find(is_meant)?;
        Some((name.clone(), origin.to_owned()))
    };
    streams.filter_map(meant).collect()
}

/// Options of `samite config show`.
#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Show the origin of each value
    #[arg(long)]
    origin: bool,
    /// Print them as JSON; with --origin, each as {"value": ..., "origin": ...}
    #[arg(long)]
    json: bool,
    /// A workflow whose settings are included
    file: Option<PathBuf>,
    /// A setting, as `samite run` takes it
    #[arg(long, value_name = "NAME=VALUE", action = ArgAction::Append)]
    config: Vec<String>,
}

pub(crate) fn show(args: &ShowArgs) -> Result<ExitCode> {
    let workflow = args.file.as_deref().map(Workflow::read).transpose()?;
    let resolved = resolve(workflow.as_ref(), &args.config)?;
    let text = match (args.json, args.origin) {
        (false, false) => resolved.config.to_toml(),
        (false, true) => resolved.to_toml_with_origin(),
        (true, with_origin) => {
            let mut settings = serde_json::to_value(&resolved.config)?;
            if with_origin {
                add_origins("", &mut settings, &resolved);
            }
            format!("{settings:#}\n")
        }
    };
    say(format_args!("{text}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces each setting by an object of its value and its origin.
fn add_origins(section: &str, settings: &mut Value, resolved: &Resolved) {
    let Value::Object(table) = settings else {
        return;
    };
    for (key, value) in table {
        let name = format!("{section}{key}");
        match resolved.origin(&name) {
            Some(origin) => *value = json!({ "value": value.take(), "origin": origin }),
            None => add_origins(&format!("{name}."), value, resolved),
        }
    }
}
