//! How long a reader takes to gather what the ranks of a step say: as long as all of it, and not as
//! its square.

use crate::products::{growth, ran};
use samite_fabric::{Config, Fabric, Identity};
use samite_stage::file::{Archive, Content, StepFile};
use samite_stage::protocol::{Attribute, Layout, Variable};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Stage};
use tempfile::TempDir;

fn many_attributes(count: u64) -> Vec<(String, Attribute)> {
    let number = |number: u64| (format!("{number:08}"), Attribute::Integer(0));
    (0..count).map(number).collect()
}

/// A step with many attributes, as its reader takes it.
#[test]
fn a_step_with_many_attributes() {
    let growth = growth(2000, |count| {
        let fabric = Fabric::alone(Identity::by_hand("alone"), Config::default());
        let stage = Stage::join(&fabric.expect("a domain of one process")).expect("a stage");
        let field = stage.write("field").discard_unread().retain(1);
        let mut field = field.open().expect("a stream");
        let mut step = field.step().expect("a step");
        for (name, value) in many_attributes(count) {
            step.attribute(&name, value);
        }
        step.commit().expect("a step");
        let mut reader = stage.reader("field").expect("a stream");
        let began = ran();
        let step = reader.at(0).expect("a step").expect("it is retained");
        let took = ran() - began;
        assert_eq!(step.attributes().count() as u64, count);
        took
    });
    assert!(growth < 8.0, "{growth} times as long");
}

/// A step with many attributes and many variables, in the files of two ranks.
#[test]
fn a_step_in_a_file_with_much_of_both() {
    let growth = growth(2000, |count| {
        let folder = TempDir::new().expect("a folder");
        let variable = |number: u64| Variable {
            name: format!("{number:08}"),
            dtype: Dtype::U8,
            shape: Dims::from_slice(&[1]),
            attributes: Vec::new(),
            blocks: Vec::new(),
        };
        let layout = Layout {
            variables: (0..count).map(variable).collect(),
        };
        let attributes = many_attributes(count);
        for rank in 0..2 {
            let file = StepFile::create(folder.path(), "field", rank, 2);
            let content = Content {
                layout: &layout,
                blocks: &[],
                attributes: &attributes,
            };
            file.and_then(|mut file| file.append(0, content))
                .expect("a step");
        }
        let archive = Archive::open(folder.path()).expect("a stream");
        let began = ran();
        let step = archive.step(0).expect("a step");
        let took = ran() - began;
        let has = (
            step.attributes().len() as u64,
            step.variables().len() as u64,
        );
        assert_eq!(has, (count, count));
        took
    });
    assert!(growth < 8.0, "{growth} times as long");
}
