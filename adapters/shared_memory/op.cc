// An all-reduce in shared memory as an op of TensorFlow. It calls the core (dream_shared.h) through
// the addresses that Python hands over, and knows a group by a number.

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

constexpr int kDone = 0;
constexpr int kAgain = 1;

struct Core {
  int (*all_reduce)(void*, const void*, void*, uint64_t, int, int, uint64_t) = nullptr;
  int (*again)(void*) = nullptr;
  int (*abandon)(void*) = nullptr;
};

Core core;
std::mutex guard;
std::unordered_map<int64_t, void*> groups;

void* GroupOf(int64_t number) {
  std::lock_guard<std::mutex> held(guard);
  auto found = groups.find(number);
  return found == groups.end() ? nullptr : found->second;
}

int DtypeOf(tensorflow::DataType dtype) {  // as enum dream_dtype has them
  switch (dtype) {
    case tensorflow::DT_HALF: return 1;
    case tensorflow::DT_BFLOAT16: return 2;
    case tensorflow::DT_FLOAT: return 3;
    case tensorflow::DT_DOUBLE: return 4;
    case tensorflow::DT_INT32: return 5;
    case tensorflow::DT_INT64: return 6;
    default: return 0;
  }
}

class AllReduce : public tensorflow::OpKernel {
 public:
  explicit AllReduce(tensorflow::OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("op", &op_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& buffer = context->input(0);
    void* group = GroupOf(group_);
    OP_REQUIRES(context, group != nullptr,
                absl::FailedPreconditionError(absl::StrCat(
                    "dream_shared group ", group_, " is not this process's")));
    tensorflow::Tensor* reduced = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, buffer.shape(),
                                                                      &reduced));
    int code = core.all_reduce(group, buffer.data(), reduced->data(), buffer.NumElements(),
                               DtypeOf(buffer.dtype()), op_, 0);
    while (code == kAgain)
      code = context->cancellation_manager() != nullptr &&
                     context->cancellation_manager()->IsCancelled()
                 ? core.abandon(group)
                 : core.again(group);
    OP_REQUIRES(context, code == kDone,
                absl::AbortedError(absl::StrCat("dream_shared group ", group_, " code ", code)));
  }

 private:
  int64_t group_;
  int64_t op_;
};

REGISTER_OP("DreamSharedAllReduce")
    .Input("buffer: T")
    .Input("order: resource")
    .Output("reduced: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("group: int")
    .Attr("op: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_KERNEL_BUILDER(Name("DreamSharedAllReduce").Device(tensorflow::DEVICE_CPU), AllReduce);

}  // namespace

extern "C" void dream_op_core(void* all_reduce, void* again, void* abandon) {
  core.all_reduce = reinterpret_cast<decltype(core.all_reduce)>(all_reduce);
  core.again = reinterpret_cast<decltype(core.again)>(again);
  core.abandon = reinterpret_cast<decltype(core.abandon)>(abandon);
}

extern "C" void dream_op_group(int64_t number, void* group) {
  std::lock_guard<std::mutex> held(guard);
  groups[number] = group;
}
