//! What a run has is not lost: used after a kill, moved, copied, damaged.

use crate::place::{Place, SMALL};

const TEXT: &str = "The quick brown fox jumps over the lazy dog.\n";

fn with_run(name: &str) -> Place {
    let place = Place::new(name);
    place.write("good.txt", TEXT.repeat(100));
    place.printed(&format!("train good.txt {SMALL} --steps 6 --save-every 2 --quiet --out run"));
    place
}

#[test]
fn a_checkpoint_and_a_killed_run_can_be_used_as_a_model() {
    let place = with_run("checkpoints");
    let generate = |folder: &str| place.printed(&format!("generate {folder} --prompt The --max-tokens 8 --seed 3")).0;
    let eval = |folder: &str| place.printed(&format!("eval {folder} good.txt --json")).0;
    let (text, loss) = (generate("run/model"), eval("run/model"));
    // As a kill leaves it before the model is written.
    std::fs::remove_dir_all(place.path("run/model")).unwrap();
    for folder in ["run", "run/checkpoints/step-00000006"] {
        assert_eq!((generate(folder), eval(folder)), (text.clone(), loss.clone()), "{folder}");
        assert!(place.printed(&format!("inspect {folder}")).0.contains("parameters"), "{folder}");
    }
    place.printed("train good.txt --init run --batch 4 --steps 1 --quiet --out further");
    let weights = "run/checkpoints/step-00000006/weights.safetensors";
    let mut bytes = place.read(weights);
    *bytes.last_mut().unwrap() ^= 1;
    place.write(weights, bytes);
    let told = place.refused("generate run/checkpoints/step-00000006");
    assert!(told.contains("not whole") && told.contains("weights.safetensors is damaged"), "{told}");
    assert_eq!(generate("run"), generate("run/checkpoints/step-00000004"), "the newest that is whole");
    let (_, told) = place.printed("train --resume run");
    let words = "warning: run/checkpoints/step-00000006: the checkpoint is not whole (weights.safetensors is damaged";
    assert!(told.starts_with(words) && told.contains("going on from step 4 instead"), "{told}");
}

#[test]
fn a_copy_beside_the_model_stays() {
    let place = with_run("copy");
    assert!(place.shell("cp -r run/model run/model.old-1 && cp -r run/model run/model.tmp-1").status.success());
    place.printed("train --resume run --steps 8 --quiet");
    for copy in ["run/model.old-1", "run/model.tmp-1"] {
        assert!(!place.read(&format!("{copy}/model.safetensors")).is_empty());
    }
}

#[test]
fn a_moved_run_goes_on_without_what_it_was_made_from() {
    let place = with_run("moved");
    place.write("held.txt", TEXT.repeat(10));
    let options = "train good.txt --validation held.txt --init run --batch 4 --threads 1 --decay-steps 6 --quiet";
    place.printed(&format!("{options} --steps 6 --out whole"));
    place.printed(&format!("{options} --steps 3 --out part"));
    assert!(place.shell("mkdir away && mv part away/moved && rm -r run good.txt held.txt").status.success());
    place.printed("train --resume away/moved --steps 6 --quiet");
    let weights = |run: &str| place.read(&format!("{run}/model/model.safetensors"));
    assert!(weights("away/moved") == weights("whole"), "the weights have other bits");
    assert!(!place.read_text("away/moved/config.toml").contains("part"), "the folder does not say where it was");
}
