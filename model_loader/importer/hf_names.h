// What the parameters of Hugging Face checkpoints are called in Koine's layout: one table for each way of naming.
//
//   M2M-100, NLLB, mBART, Marian   model.encoder.layers.0.self_attn.q_proj
//   T5, mT5                        encoder.block.0.layer.0.SelfAttention.q
//   BERT, XLM-R, RoBERTa           [bert.|roberta.]encoder.layer.0.attention.self.query
//
// The names of the three ways never collide, so that a name alone tells what it is. Pure functions; any thread.
#ifndef KOINE_MODEL_LOADER_IMPORTER_HF_NAMES_H_
#define KOINE_MODEL_LOADER_IMPORTER_HF_NAMES_H_

#include <string>
#include <string_view>

namespace koine::model_loader {

// A module, as PEFT names its targets after "base_model.model.": "model.decoder.layers.3.encoder_attn.out_proj" gives
// "decoder.layers.3.cross_attn.o". "" for a module that the layout has no place for. Several modules may share a
// place: shared, encoder.embed_tokens and decoder.embed_tokens are all "embedding"; lm_head is "output".
std::string KoineModuleName(std::string_view module);

// A parameter: a module with ".weight" or ".bias", or one of the few that stand alone (final_logits_bias is
// "output.bias"). "" for a parameter that the layout has no place for.
std::string KoineTensorName(std::string_view parameter);

// The ways of naming, and the inverse of KoineTensorName within one of them, for messages: what the checkpoint should
// have called it (without the prefix of a model with a head). `gated`: T5's feed-forward has a gate. "" if there is
// none.
enum class HfNaming { kBart, kT5, kBert };
std::string HfParameterName(HfNaming naming, std::string_view koine_tensor, bool gated);

// A parameter that checkpoints carry and that inference needs nowhere: position ids, computed tables of positions,
// heads of the pre-training task. Dropped without further ado.
bool IsKnownIgnorable(std::string_view parameter);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_HF_NAMES_H_
