//! Programs that read each other: tokens, and deaths.

use super::*;

fn cycle_edges(tokens: u64) -> Vec<Edge> {
    let back = Edge {
        tokens,
        ..Edge::new("echo", "answer", "asker")
    };
    vec![Edge::new("asker", "question", "echo"), back]
}

/// Asks with what was answered before: 0, then what `echo` makes of it, which is 3 times as much
/// and 1.
fn asker(stage: &Stage, steps: u64, tokens: u64) -> Outcome<Vec<f64>> {
    let mut answers = stage.read("answer").as_rank("asker", 0, 1).open()?;
    let mut questions = stage.write("question").as_rank("asker", 0, 1).open()?;
    let mut asked = Vec::new();
    for number in 0..steps {
        let answer = next(&mut answers)?;
        same!(answer.is_token(), number < tokens);
        let x = match answer.is_token() {
            true => {
                check!(answer.variables().next().is_none());
                let read = answer.get::<f64, Ix1>("x", ..);
                check!(
                    matches!(&read, Err(Error::Graph(GraphError::Token { .. }))),
                    "{read:?}"
                );
                number as f64
            }
            false => {
                same!(answer.number(), number - tokens);
                answer.get::<f64, Ix1>("x", ..)?[0]
            }
        };
        drop(answer);
        asked.push(x);
        let mut step = questions.step()?;
        step.put("x", [1_u64], [0_u64], array![x].view())?;
        step.commit()?;
        if number == 3 {
            point("three answers");
        }
    }
    questions.close()?;
    Ok(asked)
}

fn echo(stage: &Stage, dies: bool) -> Outcome {
    // Both programs open what they read before what they write: only the token lets the cycle
    // begin.
    let questions = stage.read("question").as_rank("echo", 0, 1).open()?;
    let mut answers = stage.write("answer").as_rank("echo", 0, 1).open()?;
    for question in questions {
        let question = question?;
        if dies && question.number() == 4 {
            pause("die");
        }
        let x: Array1<f64> = question.get("x", ..)?;
        let mut step = answers.step()?;
        step.put("x", [1_u64], [0_u64], (x * 3.0 + 1.0).view())?;
        step.commit()?;
    }
    Ok(answers.close()?)
}

fn a_cycle_with(name: &str, tokens: u64) {
    let body = |fabric: &Fabric, me: u32| {
        let stage = linked(fabric, cycle_edges(tokens))?;
        if me == 1 {
            return echo(&stage, false);
        }
        let asked = asker(&stage, 20, tokens)?;
        let expected: Vec<f64> = (0..20).fold(Vec::new(), |mut all, number: usize| {
            let before = number.checked_sub(tokens as usize);
            all.push(before.map_or(number as f64, |before| 3.0 * all[before] + 1.0));
            all
        });
        same!(asked, expected);
        Ok(())
    };
    Play::of(2, Mask::default()).run(name, body, |cluster| cluster.all_end());
}

#[test]
fn a_cycle_runs_with_a_token() {
    a_cycle_with("graph::cycles::a_cycle_runs_with_a_token", 1);
}

#[test]
fn a_cycle_runs_with_three_tokens() {
    a_cycle_with("graph::cycles::a_cycle_runs_with_three_tokens", 3);
}

/// One program of a cycle is killed: the other one is told, and does not hang.
#[test]
fn a_death_in_a_cycle_is_told() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = linked(fabric, cycle_edges(1))?;
        if me == 1 {
            return echo(&stage, true);
        }
        let mut answers = stage.read("answer").as_rank("asker", 0, 1).open()?;
        let mut questions = stage.write("question").as_rank("asker", 0, 1).open()?;
        let mut taken = 0;
        let end = loop {
            match answers.next_step() {
                Ok(Some(answer)) => drop(answer),
                end => break end.map(|_| ()),
            }
            taken += 1;
            let mut step = questions.step()?;
            step.put("x", [1_u64], [0_u64], array![1.0].view())?;
            step.commit()?;
        };
        // A token and four answers; the fifth was never written.
        same!(taken, 5);
        let is_it = matches!(
            end,
            Err(Error::Fault(Fault::WriterFailed {
                rank: 0,
                how: Failure::Died,
                ..
            }))
        );
        check!(is_it, "{end:?}");
        Ok(questions.close()?)
    };
    play.run(
        "graph::cycles::a_death_in_a_cycle_is_told",
        body,
        |cluster| {
            cluster.wait_point(play.actor(1), "die");
            cluster.kill(play.actor(1));
            cluster.wait_gone(play.actor(1));
            cluster.all_end();
        },
    );
}

fn two_tokens() -> Vec<Edge> {
    let edge = Edge::new("solver", "field", "viewer");
    vec![Edge { tokens: 2, ..edge }]
}

/// Actor 0 writes four steps; actor 1 is killed when it has taken the tokens and one of them; the
/// one after it goes on there.
fn solver_and_viewers(stage: &Stage, me: u32) -> Outcome {
    if me == 0 {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        for number in 0..4 {
            let mut step = field.step()?;
            step.put("u", SHAPE, [0_u64, 0], rows(number, 0..9, 12).view())?;
            step.commit()?;
        }
        return Ok(field.close()?);
    }
    let viewer = stage.read("field").as_rank("viewer", 0, 1);
    let mut field = viewer.lease(Duration::from_secs(60)).open()?;
    if me == 1 {
        check!(next(&mut field)?.is_token() && next(&mut field)?.is_token());
        same!(next(&mut field)?.number(), 0);
        pause("die");
    }
    for number in 1..4 {
        let step = next(&mut field)?;
        same!((step.is_token(), step.number()), (false, number));
    }
    check!(field.next_step()?.is_none());
    Ok(())
}

/// A reader that comes back after a crash has had its tokens.
#[test]
fn tokens_are_given_once() {
    let play = Play::of(3, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        if me == 2 {
            pause("begin");
        }
        let stage = linked(fabric, two_tokens())?;
        solver_and_viewers(&stage, me)
    };
    play.run("graph::cycles::tokens_are_given_once", body, |cluster| {
        cluster.wait_point(play.actor(1), "die");
        cluster.kill(play.actor(1));
        cluster.wait_gone(play.actor(1));
        cluster.wait_point(play.actor(2), "begin");
        cluster.release(play.actor(2));
        cluster.all_end();
    });
}

/// The one that comes back may be there before anybody knows that it was gone.
#[test]
fn a_reader_with_tokens_waits_for_its_rank() {
    let play = Play::of(4, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        if me >= 2 {
            pause("begin");
        }
        let stage = linked(fabric, two_tokens())?;
        if me == 3 {
            let begin = std::time::Instant::now();
            let timeout = Duration::from_secs(20);
            while stage.overview(timeout)?.figures.opening.is_empty() {
                check!(begin.elapsed() < 3 * timeout, "nobody waits to be let in");
            }
            point("it waits");
            return Ok(());
        }
        solver_and_viewers(&stage, me)
    };
    let name = "graph::cycles::a_reader_with_tokens_waits_for_its_rank";
    play.run(name, body, |cluster| {
        cluster.wait_point(play.actor(1), "die");
        for who in [play.actor(2), play.actor(3)] {
            cluster.wait_point(who, "begin");
            cluster.release(who);
        }
        cluster.wait_point(play.actor(3), "it waits");
        cluster.kill(play.actor(1));
        cluster.wait_gone(play.actor(1));
        cluster.all_end();
    });
}
