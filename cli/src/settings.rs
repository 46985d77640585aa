//! The layers of settings that this command sees, and `samite config show`.

use anyhow::Result;
use samite::config::{Layers, Resolved};
use samite_launch::Workflow;
use std::path::Path;
use std::process::ExitCode;

/// Resolves user file, workflow, environment and `--config` options.
pub(crate) fn resolve(workflow: Option<&Workflow>, options: &[String]) -> Result<Resolved> {
    let mut layers = Layers::default().user_file()?;
    if let Some(workflow) = workflow {
        layers = layers.workflow(workflow.path(), workflow.text())?;
    }
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        (
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )
    };
    layers = layers.environment(std::env::vars_os().map(text))?;
    for option in options {
        layers = layers.assignment(option)?;
    }
    Ok(layers.resolve()?)
}

pub(crate) fn show(origin: bool, file: Option<&Path>, options: &[String]) -> Result<ExitCode> {
    let workflow = file.map(Workflow::read).transpose()?;
    let resolved = resolve(workflow.as_ref(), options)?;
    print!(
        "{}",
        if origin {
            resolved.to_toml_with_origin()
        } else {
            resolved.config.to_toml()
        }
    );
    Ok(ExitCode::SUCCESS)
}
