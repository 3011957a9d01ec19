"""The rows of Table 1 of Narang et al. 2021 ("Do Transformer Modifications Transfer Across Implementations and
Applications?", arXiv 2102.11972) that are switches of TransformerConfig.

SuperGLUE scores and final pre-training losses are those of the table, compared with a transcript of the paper.
"""

# By file in gin/models/t5/modifications/: name, SuperGLUE, final loss.
VANILLA = ("Vanilla Transformer", 71.66, 1.838)
ROWS: dict[str, tuple[str, float, float]] = {
  "units/gelu": ("GeLU", 75.79, 1.838),
  "units/swish": ("Swish", 73.77, 1.847),
  "units/elu": ("ELU", 67.83, 1.932),
  "units/glu": ("GLU", 74.20, 1.814),
  "units/geglu": ("GeGLU", 75.96, 1.792),
  "units/reglu": ("ReGLU", 76.17, 1.803),
  "units/selu": ("SeLU", 68.76, 1.948),
  "units/swiglu": ("SwiGLU", 76.00, 1.789),
  "units/liglu": ("LiGLU", 75.34, 1.798),
  "units/sigmoid": ("Sigmoid", 74.31, 1.867),
  "units/softplus": ("Softplus", 72.45, 1.850),
  "residuals/rms_norm": ("RMS Norm", 75.45, 1.821),
  "residuals/rezero": ("ReZero", 61.69, 1.939),
  "residuals/rezero_layer_norm": ("ReZero + LayerNorm", 70.42, 1.858),
  "residuals/rezero_rms_norm": ("ReZero + RMS Norm", 70.33, 1.875),
  "residuals/fixup": ("Fixup", 58.56, 2.067),
  "sharing/blocks": ("Block sharing", 64.50, 2.164),
  "sharing/blocks_factorized": ("Block sharing + factorized embeddings", 60.84, 2.183),
  "sharing/blocks_factorized_tied": ("Block sharing + factorized and shared embeddings", 53.95, 2.385),
  "sharing/encoder_blocks": ("Encoder only block sharing", 69.60, 1.929),
  "sharing/decoder_blocks": ("Decoder only block sharing", 67.93, 2.082),
  "sharing/universal": ("Universal Transformer", 70.13, 2.053),
  "embeddings/factorized": ("Factorized embedding", 70.41, 1.855),
  "embeddings/factorized_tied": ("Factorized and shared embeddings", 68.69, 1.952),
  "embeddings/tied_inputs": ("Tied encoder/decoder input embeddings", 71.70, 1.840),
  "embeddings/tied_decoder": ("Tied decoder input and output embeddings", 74.86, 1.827),
  "embeddings/untied": ("Untied embeddings", 72.99, 1.834),
  "outputs/adaptive_softmax": ("Adaptive softmax", 72.91, 1.982),
  "outputs/mixture_of_softmaxes": ("Mixture of softmaxes", 76.77, 1.821),
  "synthesizer/dense": ("Synthesizer (dense)", 61.03, 1.962),
  "synthesizer/dense_plus": ("Synthesizer (dense plus)", 73.98, 1.840),
  "synthesizer/dense_plus_alpha": ("Synthesizer (dense plus alpha)", 74.25, 1.828),
  "synthesizer/factorized": ("Synthesizer (factorized)", 62.78, 1.968),
  "synthesizer/random": ("Synthesizer (random)", 54.27, 2.009),
  "synthesizer/random_plus": ("Synthesizer (random plus)", 73.32, 1.842),
  "synthesizer/random_plus_alpha": ("Synthesizer (random plus alpha)", 75.24, 1.828),
  "experts/mixture": ("Mixture of experts", 74.55, 1.785),
  "experts/switch": ("Switch Transformer", 75.38, 1.758),
}
