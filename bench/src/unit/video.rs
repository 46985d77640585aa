//! The video job, as its users run it, and figures of its runs.

use super::Unit;
use super::staging::workflow;
use crate::control::Command;
use crate::figures::median;
use crate::video::VIA;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The runs of the last size.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The words of the command behind its figure.
    of: String,
    runs: Vec<Value>,
}

impl Unit {
    /// Runs `video FIGURE WIDTH HEIGHT FRAMES TIMES`; `wall` is a new run, another figure that of
    /// the runs before, if there are; `run` answers with all figures of the last one.
    pub(super) fn video(&self, command: &Command) -> Result<Option<f64>> {
        let figure = command.word(1);
        if !["wall", "ideal", "deviation", "run"].contains(&figure) {
            return Ok(None);
        }
        if self.rank != 0 {
            return Ok(Some(0.0));
        }
        let (width, height) = (command.number(2)?, command.number(3)?);
        let times: Vec<u64> = command
            .word(5)
            .split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let size = format!("{width}x{height}");
        let (frames, workers) = (command.word(4), times.len().to_string());
        let via = std::env::var(VIA).unwrap_or_else(|_| "dsm".to_owned());
        let words = [
            "--via",
            &via,
            "--size",
            &size,
            "--frames",
            frames,
            "--workers",
            &workers,
            "--nodes",
            "paper",
        ];
        let mut past = self.past.borrow_mut();
        let of = command.words_from(2).collect::<Vec<_>>().join(" ");
        if past.of != of {
            *past = Past {
                of,
                runs: Vec::new(),
            };
        }
        if figure == "wall" || past.runs.is_empty() {
            let run = workflow::figures("video", &words)?;
            has_times(&run, &times)?;
            past.runs.push(run);
        }
        let last = past.runs.last().context("no run")?;
        let key = match figure {
            "wall" => return number(last, "wall_s").map(Some),
            "run" => {
                *self.said.borrow_mut() = Some(last.to_string());
                return Ok(Some(0.0));
            }
            "ideal" => "efficiency",
            _ => "deviation_of_2n",
        };
        past.runs.iter().try_for_each(is_ideal_of_nodes)?;
        let values: Result<Vec<f64>> = past.runs.iter().map(|run| number(run, key)).collect();
        let value = median(&mut values?).context("no run")?;
        // As the peers answer: the time over the ideal one.
        Ok(Some(if figure == "ideal" {
            1.0 / value
        } else {
            value
        }))
    }
}

/// Returns a number among the figures of a run.
pub(super) fn number(run: &Value, key: &str) -> Result<f64> {
    let value = run.get(key).and_then(Value::as_f64);
    value.with_context(|| format!("the job has no figure `{key}`"))
}

/// Checks that the nodes of the job are those of the peers.
fn has_times(run: &Value, times: &[u64]) -> Result<()> {
    let nodes = run.get("nodes").and_then(Value::as_array);
    let nodes = nodes.context("the job has no figures of its nodes")?;
    ensure!(
        nodes.len() == times.len(),
        "the job has {} nodes",
        nodes.len()
    );
    for (node, time) in nodes.iter().zip(times) {
        let needs = number(node, "needs_s")? * 1e6;
        ensure!(
            (needs - *time as f64).abs() <= 1.0,
            "a node of the job needs {needs} us for a frame instead of {time}"
        );
    }
    Ok(())
}

/// Checks that what is called ideal is that of the nodes: a sink that is slow, or a node that is
/// lost, must not make it easier to reach.
fn is_ideal_of_nodes(run: &Value) -> Result<()> {
    let binds = run.get("binds").and_then(Value::as_str);
    ensure!(
        binds == Some("compute"),
        "the nodes do not bind the job, but {binds:?}"
    );
    let nodes = run.get("nodes").and_then(Value::as_array);
    let is_lost = |node: &Value| node.get("is_lost") != Some(&Value::Bool(false));
    ensure!(
        !nodes.context("no nodes")?.iter().any(is_lost),
        "a node was lost"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ideal_of_a_slow_sink_is_found() {
        let run = |binds: &str, is_lost: bool| {
            let run = serde_json::json!({"binds": binds, "nodes": [{"is_lost": is_lost}]});
            is_ideal_of_nodes(&run).is_ok()
        };
        assert!(run("compute", false));
        assert!(!run("encode", false) && !run("compute", true));
        assert!(is_ideal_of_nodes(&serde_json::json!({})).is_err());
    }

    #[test]
    fn nodes_of_other_times_are_found() {
        let run = serde_json::json!({"nodes": [{"needs_s": 0.041}, {"needs_s": 0.135_632_8}]});
        assert!(has_times(&run, &[41_000, 135_633]).is_ok());
        assert!(has_times(&run, &[41_000, 135_000]).is_err());
        assert!(has_times(&run, &[41_000]).is_err());
        assert!(number(&run, "wall_s").is_err());
    }
}
