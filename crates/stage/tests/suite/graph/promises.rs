//! What was promised, who is linked, and what is a reader's own.

use super::*;

/// One process that is all programs.
fn alone() -> Fabric {
    Fabric::alone(Identity::by_hand("all"), Default::default()).expect("a domain of one")
}

fn promised(extent: Option<Extent>, every: u64) -> Edge {
    Edge {
        variables: vec![Promise {
            name: "u".into(),
            dtype: Dtype::F64,
            extent,
            cut: None,
            every,
        }],
        ..Edge::new("solver", "field", "viewer")
    }
}

#[test]
fn a_broken_promise_is_told_to_the_writer() {
    let fabric = alone();
    let block = Extent::Block(Dims::from_slice(&[9, 12]));
    let stage = linked(&fabric, vec![promised(Some(block), 1)]).unwrap();
    let mut field = stage.write("field").as_rank("solver", 0, 1).open().unwrap();
    let mut step = field.step().unwrap();
    let whole = rows(0, 0..9, 12).mapv(|x| x as f32);
    step.put("u", SHAPE, [0_u64, 0], whole.view()).unwrap();
    let error = step.commit().unwrap_err();
    assert!(
        matches!(error, Error::Graph(GraphError::Broken { step: 0, .. })),
        "{error}"
    );
    let text = error.to_string();
    for part in ["solver/field -> viewer/field", "u as f64", "u as f32"] {
        assert!(text.contains(part), "{text}");
    }
    // The step can be written again, as promised.
    let mut step = field.step().unwrap();
    assert_eq!(step.number(), 0);
    step.put("u", SHAPE, [0_u64, 0], rows(0, 0..9, 12).view())
        .unwrap();
    step.commit().unwrap();
    // Half of a block is not a block.
    let mut step = field.step().unwrap();
    step.put("u", SHAPE, [0_u64, 0], rows(1, 0..4, 12).view())
        .unwrap();
    let error = step.commit().unwrap_err().to_string();
    assert!(error.contains("a block of u of shape [4, 12]"), "{error}");
}

/// Which rank puts a variable is not promised, so only who sees all parts can miss it.
#[test]
fn a_broken_promise_is_told_to_the_reader() {
    let body = |fabric: &Fabric, me: u32| {
        let shape = Extent::Shape(Dims::from_slice(&SHAPE));
        let stage = linked(fabric, vec![promised(Some(shape), 2)])?;
        if me < 2 {
            let mut field = stage.write("field").as_rank("solver", me, 2).open()?;
            for number in 0..4 {
                let mut step = field.step()?;
                if me == 1 && number == 0 {
                    step.put("u", SHAPE, [0_u64, 0], rows(0, 0..9, 12).view())?;
                }
                step.put("v", [2_u64], [u64::from(me)], array![1.0].view())?;
                step.commit()?;
            }
            return Ok(field.close()?);
        }
        let mut field = stage.read("field").as_rank("viewer", 0, 1).open()?;
        same!(next(&mut field)?.number(), 0);
        same!(next(&mut field)?.number(), 1);
        let Err(Error::Graph(broken)) = field.next_step().map(|_| ()) else {
            check!(false, "step 2 has no u");
            return Ok(());
        };
        let text = broken.to_string();
        check!(text.contains("step 2 has no u"), "{text}");
        check!(text.contains("solver promised viewer"), "{text}");
        // The next call goes on.
        same!(next(&mut field)?.number(), 3);
        check!(field.next_step()?.is_none());
        Ok(())
    };
    let name = "graph::promises::a_broken_promise_is_told_to_the_reader";
    Play::of(3, Mask::default()).run(name, body, |cluster| cluster.all_end());
}

#[test]
fn who_is_not_linked_hears_which_edges_there_are() {
    let fabric = alone();
    let operators = vec!["mine:mine".into()];
    let changed = Edge {
        operators,
        ..Edge::new("solver", "other", "viewer")
    };
    let stage = linked(
        &fabric,
        vec![Edge::new("solver", "field", "viewer"), changed],
    )
    .unwrap();
    let error = stage
        .write("fild")
        .as_rank("solver", 0, 1)
        .open()
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Graph(GraphError::NoEdgeFrom { .. })),
        "{error}"
    );
    assert!(
        error.to_string().contains("solver/field -> viewer/field"),
        "{error}"
    );
    let error = stage
        .read("field")
        .as_rank("stranger", 0, 1)
        .open()
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Graph(GraphError::NoEdgeTo { .. })),
        "{error}"
    );
    let error = stage
        .read("other")
        .as_rank("viewer", 0, 1)
        .open()
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Graph(GraphError::NoOperator { .. })),
        "{error}"
    );
}

fn write_one(stage: &Stage) -> Writer {
    let mut field = stage.write("field").as_rank("solver", 0, 1).open().unwrap();
    let mut step = field.step().unwrap();
    step.put("u", [8_u64, 8], [0_u64, 0], rows(0, 0..8, 8).view())
        .unwrap();
    step.commit().unwrap();
    field
}

#[test]
fn what_is_mine_depends_on_the_edge() {
    let fabric = alone();
    // With other methods a reader's own is a block.
    let plain = stage(&fabric, Settings::default()).unwrap();
    let field = write_one(&plain);
    let mut reader = plain.read("field").as_rank("viewer", 0, 1).open().unwrap();
    let step = reader.next_step().unwrap().unwrap();
    let own = step.mine::<f64, Ix2>("u").unwrap();
    assert_eq!(own.array.slice(s![..2, ..]), rows(0, 0..2, 8));
    // A domain of one process has one stage at a time.
    drop((step, reader, field, plain));
    let stage = linked(&fabric, vec![Edge::new("solver", "field", "viewer")]).unwrap();
    let _field = write_one(&stage);
    let mut reader = stage.read("field").as_rank("viewer", 0, 1).open().unwrap();
    let step = reader.next_step().unwrap().unwrap();
    let error = step.mine::<f64, Ix2>("u").unwrap_err();
    assert!(
        matches!(error, Error::Graph(GraphError::NothingIsMine { .. })),
        "{error}"
    );
    assert!(
        step.view::<f64>("u", ..).unwrap().is_some(),
        "it lies where it was put"
    );
}
