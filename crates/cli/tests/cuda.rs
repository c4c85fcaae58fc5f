//! A CUDA device that is not to be had is refused in one line that says why, and nothing is left behind. The driver is one of
//! our own, so that this is tried where there is none.
#![cfg(target_os = "linux")]

#[allow(dead_code)]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::Place;

/// Builds the driver, under the names that are looked for.
fn fake_driver(place: &Place) -> PathBuf {
    let folder = place.0.join("lib64");
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/fake_driver.rs");
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
        .arg(folder.join("libcuda.so"))
        .arg(source)
        .status()
        .unwrap();
    assert!(built.success());
    for name in ["libcuda.so.1", "libnvrtc.so", "libnvrtc.so.13"] {
        std::fs::copy(folder.join("libcuda.so"), folder.join(name)).unwrap();
    }
    folder
}

/// What `gradus train` says, in a line, with this driver and these answers of it.
fn refusal(place: &Place, libraries: &Path, device: &str, answers: &[(&str, i32)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gradus"))
        .args(["train", "--device", device, "--out", "run"])
        .current_dir(&place.0)
        .envs(answers.iter().map(|(name, value)| (name, value.to_string())))
        .env("LD_LIBRARY_PATH", libraries)
        .env("CUDA_HOME", &place.0)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{answers:?}: {text}");
    assert!(!place.0.join("run").exists(), "{answers:?}: nothing is left behind");
    text
}

#[test]
fn a_device_that_is_not_to_be_had_is_refused_in_a_line() {
    let place = Place::new("cuda");
    let driver = fake_driver(&place);
    let (speaks, has) = (("FAKE_DRIVER", 13000), ("FAKE_DEVICES", 1));
    for (device, answers, parts) in [
        ("cuda", &[("FAKE_DRIVER", 12040)][..], ["the NVIDIA driver speaks CUDA 12.4 and 13.0 is needed", "update"]),
        ("cuda", &[speaks, ("FAKE_INIT", 100)], ["there is no CUDA device 0", "cuInit failed: it said no"]),
        ("cuda", &[speaks], ["there is no CUDA device 0", "there are none"]),
        ("cuda:3", &[speaks, has], ["there is no CUDA device 3", "there is only device 0"]),
        ("cuda", &[speaks, has, ("FAKE_MAJOR", 8)], ["A GPU of before has compute capability 8.0", "use the CPU"]),
        (
            "cuda",
            &[speaks, has, ("FAKE_MAJOR", 9)],
            ["libnvrtc.so.13 is not to be found", "install the CUDA 13 toolkit"],
        ),
    ] {
        let said = refusal(&place, &driver, device, answers);
        assert!(parts.iter().all(|part| said.contains(part)), "{answers:?}: {said}");
    }
    // A file that is no library is none.
    let broken = place.0.join("broken");
    std::fs::create_dir_all(&broken).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(broken.join(name), "no library").unwrap();
    }
    let said = refusal(&place, &broken, "cuda", &[]);
    assert!(said.contains("libcuda.so.1 is not to be found; install NVIDIA's driver, or use the CPU"), "{said}");
}
