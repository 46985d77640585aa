//! What `samite run` refuses: all that `samite doctor` calls BAD.

use super::plan::Plan;
use super::{Finding, State, advice, machine, methods};
use crate::run::UsageError;
use anyhow::Result;
use samite::config::Resolved;
use samite_launch::{Program, Workflow};

/// Refuses a job that cannot run, with the sentences of `samite doctor`. `has_domain`: the job
/// starts a domain of its own. The memory and the staging servers of another one are not known
/// here.
///
/// # Errors
/// [`UsageError`].
pub(crate) fn refuse(
    workflow: Option<&Workflow>,
    programs: &[Program],
    settings: &Resolved,
    has_domain: bool,
) -> Result<()> {
    let edges = &settings.config.edge;
    let mut findings: Vec<Finding> = Vec::new();
    // A program without a workflow has no plan; the launcher checks its limits as it starts.
    if workflow.is_some() {
        let plan = Plan::new(programs, edges, &settings.config)?;
        findings.extend(advice::findings(&plan, programs));
        findings.extend(machine::required(programs, &settings.config));
    }
    findings.extend(methods::findings(programs, edges, settings));
    let of_domain = ["servers", "memory", "memory for steps"];
    findings.retain(|finding| {
        finding.state == State::Bad && (has_domain || !of_domain.contains(&finding.what))
    });
    if findings.is_empty() {
        return Ok(());
    }
    let lines = findings.iter().map(|finding| {
        let (what, found, remedy) = (finding.what, &finding.found, &finding.remedy);
        format!("\n  {what}: {found}; {remedy}")
    });
    let name = workflow.map_or("the job".to_owned(), |workflow| {
        workflow.path().display().to_string()
    });
    let hint = workflow.map_or(String::new(), |_| {
        format!("`samite doctor {name}`, with the same options, shows the whole plan, and ")
    });
    let message = format!(
        "{name} cannot run like this, so nothing was started:{}\n{hint}`--force` runs it all the same",
        lines.collect::<String>()
    );
    Err(UsageError(message).into())
}
