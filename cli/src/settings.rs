//! The layers of settings that this command sees, and `samite config show`.

use crate::screen::say;
use anyhow::Result;
use samite::config::{ConfigError, Layers, Resolved};
use samite::stage::method::graph::Edge;
use samite_launch::Workflow;
use std::collections::BTreeSet;
use std::path::Path;
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
    let own = format!("{}:", workflow.path().display());
    for name in resolved.config.stage.streams.keys() {
        if streams.contains(name.as_str()) {
            continue;
        }
        // Only settings from the command line or this workflow are meant for this run.
        let is_meant = |origin: &&str| *origin == "--config" || origin.starts_with(&own);
        let Some(origin) = resolved.origins_of_stream(name).find(is_meant) else {
            continue;
        };
        let all: Vec<&str> = streams.iter().copied().collect();
        let hint = match samite_launch::nearest(name, all.iter().copied()) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => format!("; its edges have {}", all.join(", ")),
        };
        return Err(ConfigError::Stream {
            origin: origin.to_owned(),
            name: name.clone(),
            hint,
        });
    }
    Ok(())
}

pub(crate) fn show(origin: bool, file: Option<&Path>, options: &[String]) -> Result<ExitCode> {
    let workflow = file.map(Workflow::read).transpose()?;
    let resolved = resolve(workflow.as_ref(), options)?;
    let text = if origin {
        resolved.to_toml_with_origin()
    } else {
        resolved.config.to_toml()
    };
    say(format_args!("{text}"))?;
    Ok(ExitCode::SUCCESS)
}
